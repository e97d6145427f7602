"""The origin of a run: commit, uncommitted changes, versions, environment."""
