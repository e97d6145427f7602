"""The Python of the ranks: the one that the user means, and what a script names."""
