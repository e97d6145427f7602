"""What a front end uses of the engine: profiles, runs, and the connection to the supervisor of a run."""
