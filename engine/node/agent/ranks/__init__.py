"""The part of an agent that handles the ranks of its node: starts, watches, relays and ends them."""
