"""Command lines of scripts and recipes: what they declare, read from their source without running it, and the words that give it values."""
