"""`torch.distributed` over MPI on a stock torch: importing this module makes the backend known, and loads no MPI.

    import rankdeck.c10d.mpi
    torch.distributed.init_process_group("mpi")     # or "cpu:mpi", or "rankdeck_mpi"

The ranks are started by mpirun. Rank and world size come from MPI; where RANK and WORLD_SIZE are set they must agree with it.

| variable | meaning |
|---|---|
| `RANKDECK_MPI=mpi4py` | "mpi" means this backend even where torch has one built in |
| `RANKDECK_MPI_CUDA=aware` | CUDA tensors are handed to MPI as they are; by default they go through host memory |
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

NAME = "rankdeck_mpi"
"""Names this backend and no other, on every torch: for those who want it beside an MPI that torch has built in."""

_DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Makes the backend known under `rankdeck_mpi`, and under `mpi` where torch has no MPI of its own.

    Called when this module is imported, and by torch 2.14 and newer as the entry point `torch.distributed.backends`. Doing it
    again does no harm.
    """
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=_DEVICES)
    built_in = dist.is_mpi_available() and not _is_ours()
    if (built_in and os.environ.get("RANKDECK_MPI") != "mpi4py") or "MPI" in dist.Backend._plugins:
        return
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        dist.Backend.register_backend("mpi", _create, extended_api=True, devices=_DEVICES)
        return
    # Up to torch 2.13 "mpi" is compared with before any plugin is asked for, and made by this class.
    c10d.ProcessGroupMPI = _Creator  # type: ignore[assignment,misc]
    c10d._MPI_AVAILABLE = True


def _is_ours() -> bool:
    return getattr(c10d, "ProcessGroupMPI", None) is _Creator


class _Creator:
    """What torch up to 2.13 takes for its own `ProcessGroupMPI`."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        """Makes a group of these ranks, in this order; an empty list means all."""
        # These versions hand over neither name nor timeout, which their `_new_process_group_helper` has as its arguments.
        caller = sys._getframe(1).f_locals
        timeout = caller.get("timeout") or dist.default_pg_timeout
        return _make(str(caller.get("group_name", "")), ranks, timeout, caller.get("group_rank"))


def _create(options: Any, backend_options: object) -> Any:
    return _make(options.group_id, options.global_ranks_in_group, options.timeout, options.group_rank)


def _make(name: str, ranks: list[int], timeout: timedelta, rank: int | None) -> Any:
    """A process group, and MPI with it if it is the first. `rank`: what torch believes this process to be; None or -1: nothing."""
    from rankdeck.c10d._mpi import library as mpi_library

    mpi_library.load()
    from rankdeck.c10d._mpi.group import ProcessGroup

    return ProcessGroup.create(name, ranks, timeout, None if rank is None or rank < 0 else rank)


register()
