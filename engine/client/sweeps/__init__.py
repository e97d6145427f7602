"""Starts the runs of a sweep."""
