"""The TOML document of a profile: reading it, checking it, and where its keys stand, for errors."""
