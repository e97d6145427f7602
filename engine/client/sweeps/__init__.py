"""Runs of sweeps, and the queue that starts them and others."""
