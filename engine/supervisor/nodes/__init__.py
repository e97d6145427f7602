"""The nodes of a run: links to their agents, orders to them, and their reports."""
