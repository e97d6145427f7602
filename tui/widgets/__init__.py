"""The parts that screens are made of: one widget a file."""
