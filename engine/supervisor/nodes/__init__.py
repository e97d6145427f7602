"""Links to the agents of a run, orders to them, and their reports."""
