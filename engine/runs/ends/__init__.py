"""Ends of runs: without a supervisor, removal, and the files that go when a run has ended."""
