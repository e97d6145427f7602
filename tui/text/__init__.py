"""Text of the screens. Pure."""
