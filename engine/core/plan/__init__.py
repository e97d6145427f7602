"""Profile, layout and plan."""
