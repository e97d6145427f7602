"""Failures that are known, as data: how each is recognised, what it means, what helps. Nothing here decides anything.

The first letter of an id says where it comes from: P the program, R memory, C CUDA, G gloo, K rankdeck's own mpi and ucc, T the store, N nccl, D training in
parallel, E torchrun and how processes end, M MPI, U ucc, S ssh.
"""

from __future__ import annotations

from engine.core.failures.causes import collectives, devices, mpi, nccl, nodes, program
from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    *nccl.CAUSES,
    *collectives.CAUSES,
    *devices.CAUSES,
    *mpi.CAUSES,
    *nodes.CAUSES,
    *program.CAUSES,
)
"""Looked through in this order: what is more special stands first."""
