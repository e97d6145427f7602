"""Look at a run once a second, and report what they notice."""
