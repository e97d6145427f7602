"""Numbers in lines of output: the formats of trainers, and their meaning."""
