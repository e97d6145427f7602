"""From a profile to a plan: files, nodes, checks."""
