"""The process group over UCC and UCX, by ctypes."""
