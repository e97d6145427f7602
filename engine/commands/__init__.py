"""The command line: every verb, what it prints and its exit status."""
