"""Programs that run on nodes. They use only the standard library."""
