"""Reads the output of ranks, as their files grow."""
