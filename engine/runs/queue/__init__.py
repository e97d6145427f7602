"""The file of the queue, and the process that starts its runs."""
