"""The state machine of a run."""
