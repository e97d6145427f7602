"""Programs of one file that agents start."""
