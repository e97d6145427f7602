"""A run as front ends see it."""
