"""Commands of other launchers, read into profiles."""
