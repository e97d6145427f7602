"""Checks of nodes before a launch: what each finding means."""
