"""`torch.distributed` over MPI, with a stock torch. Importing this module registers the backend, and loads no MPI.

    import rankdeck.c10d.mpi
    torch.distributed.init_process_group("mpi")     # or "cpu:mpi", or "rankdeck_mpi"

mpirun starts the ranks. Rank and world size come from MPI; RANK and WORLD_SIZE, if set, must have the same values.

| variable | meaning |
|---|---|
| `RANKDECK_MPI=mpi4py` | "mpi" means this backend even if torch has a built-in one |
| `RANKDECK_MPI_CUDA=aware` | CUDA tensors are passed to MPI directly; by default they go through host memory |
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from rankdeck._torch_compat import add_backend, add_mpi, mpi_group

NAME = "rankdeck_mpi"  # name of this backend on every torch, even if torch has MPI built in

_DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Registers the backend as `rankdeck_mpi`, and as `mpi` if torch has no MPI of its own. Called when this module is imported, and by
    torch 2.14 and newer as the entry point `torch.distributed.backends`. Further calls do nothing."""
    add_backend(NAME, _create, _DEVICES)
    if is_ours():
        add_mpi(_create, _Creator, _DEVICES)


def is_ours() -> bool:
    """Whether the backend `mpi` is this one, and not one that torch has built in."""
    built_in = dist.is_mpi_available() and getattr(c10d, "ProcessGroupMPI", None) is not _Creator
    return not built_in or os.environ.get("RANKDECK_MPI") == "mpi4py"


class _Creator:
    """Replaces torch's own `ProcessGroupMPI` (up to torch 2.13)."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        """Creates a group of these ranks, in this order; an empty list means all."""
        name, timeout, rank = mpi_group()
        return _make(name, ranks, timeout, rank)


def _create(options: Any, backend_options: object) -> Any:
    return _make(options.group_id, options.global_ranks_in_group, options.timeout, options.group_rank)


def _make(name: str, ranks: list[int], timeout: timedelta, rank: int | None) -> Any:
    """Creates a process group, and initialises MPI first if necessary. `rank`: rank of this process for torch; None or -1: unknown."""
    from rankdeck.c10d._mpi import library as mpi_library

    mpi_library.load()
    from rankdeck.c10d._mpi.group import ProcessGroup

    return ProcessGroup.create(name, ranks, timeout, None if rank is None or rank < 0 else rank)


register()
