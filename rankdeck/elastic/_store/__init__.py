"""Messages between ranks, and from the supervisor, through the store of an attempt."""
