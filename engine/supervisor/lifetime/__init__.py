"""Supervisors that end: the guard that starts the next one, and the end of a run without a supervisor."""
