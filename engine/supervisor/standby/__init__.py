"""Supervisors that wait for a run."""
