"""The text of a failure: tracebacks, frames and prefixes of launchers, and the words that are evidence."""
