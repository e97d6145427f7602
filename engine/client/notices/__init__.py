"""Tells the user that a run needs them."""
