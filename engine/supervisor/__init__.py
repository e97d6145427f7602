"""The process that owns one run: asynchronous I/O around the pure core."""
