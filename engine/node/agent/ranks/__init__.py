"""What an agent does with the ranks of its node: starts, watches, relays and ends them."""
