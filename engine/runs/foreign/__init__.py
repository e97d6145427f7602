"""Reads files that other programs write: trackers, the Trainer, and the flight recorder of torch."""
