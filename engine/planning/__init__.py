"""Makes plans from profiles: finds profiles and nodes, asks and checks nodes."""
