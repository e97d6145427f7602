"""The command line: commands, what they print, exit statuses."""
