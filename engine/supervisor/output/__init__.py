"""What ranks write: their files are read as they grow."""
