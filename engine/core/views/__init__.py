"""What a front end sees of a run."""
