"""Files of ranks as one log: read by lines, filtered, searched and folded."""
