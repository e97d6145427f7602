"""The file of the queue, which wakes the process that starts its runs."""
