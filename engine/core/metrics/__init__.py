"""Numbers that ranks report, over time."""
