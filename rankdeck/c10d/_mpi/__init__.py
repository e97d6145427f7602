"""The process group over MPI, by mpi4py."""
