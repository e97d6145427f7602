"""Sweeps: one profile with other values, run after run."""
