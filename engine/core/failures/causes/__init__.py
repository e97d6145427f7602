"""Known failures as data: how each is recognised, what it means, and the next step.

The first letter of an id says where it comes from: P the program, R memory, C CUDA, G gloo, K rankdeck's own mpi and ucc, B `monitored_barrier`, T the store, rendezvous and setup of groups, N nccl, D training in
parallel, E torchrun and how processes end, M MPI, U ucc, S ssh, srun and pbs_tmrsh.
"""

from __future__ import annotations

from engine.core.failures.causes import collectives, devices, mpi, nccl, nodes, pbs, program, slurm, ssh
from engine.core.failures.causes.cause import Cause

CAUSES: tuple[Cause, ...] = (
    *nccl.CAUSES,
    *collectives.CAUSES,
    *devices.CAUSES,
    *mpi.CAUSES,
    *ssh.CAUSES,
    *slurm.CAUSES,
    *pbs.CAUSES,
    *nodes.CAUSES,
    *program.CAUSES,
)
"""Searched in this order: specific patterns come before general ones."""
