"""Reads what ranks write, as their files grow."""
