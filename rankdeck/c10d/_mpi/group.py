"""The process group over MPI: its creation, and its point-to-point transfers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from mpi4py import MPI

from rankdeck.c10d import _group
from rankdeck.c10d._background import name_ranks
from rankdeck.c10d._mpi import job as mpi_job
from rankdeck.c10d._mpi import tensors as mpi_tensors
from rankdeck.c10d._mpi.agreement import Agreement
from rankdeck.c10d._mpi.collectives import Collectives
from rankdeck.c10d._mpi.job import Job, meet
from rankdeck.c10d._mpi.tensors import Block, memory, unit
from rankdeck.c10d._operations import Operations

_BARRIER_TAGS = 32768  # monitored barriers use these tags one after the other; every MPI allows this number


class ProcessGroup(_group.ProcessGroup):
    NAME = "mpi"

    def __init__(self, job: Job, name: str, ranks: Sequence[int], timeout: float) -> None:
        comm, transfers = job.form(name, ranks, timeout)

        def free() -> None:
            comm.Free()
            transfers.Free()

        super().__init__(
            comm.rank,
            comm.size,
            Collectives(comm),
            Operations(job, name, comm.rank, Agreement(comm), free, timeout),
            mpi_tensors.takes_cuda(),
        )
        self._comm, self._transfers = comm, transfers
        self._barriers = 0

    @classmethod
    def create(cls, name: str, ranks: Sequence[int], timeout: timedelta, rank: int | None) -> ProcessGroup:
        """Creates a group.

        Args:
            ranks: the members' ranks in MPI_COMM_WORLD; empty: all.
            rank: rank of this process in the group according to torch; None: unknown.

        Raises:
            RuntimeError: torch and MPI disagree about the rank.
            torch.distributed.DistBackendError: members are missing.
        """
        job = mpi_job.join(timeout.total_seconds())
        ranks = list(ranks) or list(range(job.size))
        if rank is not None and (rank >= len(ranks) or ranks[rank] != job.rank):
            raise RuntimeError(
                f"this process is rank {rank} of process group {name!r} ({name_ranks(ranks)}) for torch, but rank {job.rank} for "
                "MPI: let RANK be MPI's own (OMPI_COMM_WORLD_RANK or PMI_RANK), or leave RANK and WORLD_SIZE unset"
            )
        return cls(job, name, ranks, timeout.total_seconds())

    def _find_missing(self, seconds: float, name_all: bool) -> list[int]:
        self._barriers += 1
        return meet(self._comm, range(self.size()), self._barriers % _BARRIER_TAGS, seconds, name_all)

    def _send(self, host: torch.Tensor, rank: int, tag: int) -> _Request:
        with Block(unit(host), host.numel()) as datatype:  # MPI keeps it until the transfer has ended
            return _Request(self._transfers.Isend([memory(host), 1, datatype], dest=rank, tag=tag))

    def _receive(self, host: torch.Tensor, rank: int | None, tag: int) -> _Request:
        source = MPI.ANY_SOURCE if rank is None else rank
        with Block(unit(host), host.numel()) as datatype:
            return _Request(self._transfers.Irecv([memory(host), 1, datatype], source=source, tag=tag), host.nbytes)


class _Request:
    """A transfer over MPI; methods: see `_work.Request`. `size`: bytes that must arrive; None: it is sent."""

    def __init__(self, request: MPI.Request, size: int | None = None) -> None:
        self._request, self._status, self._size = request, MPI.Status(), size

    @property
    def source(self) -> int:
        return self._status.source

    def is_done(self) -> bool:
        if not self._request.Test(self._status):
            return False
        size, self._size = self._size, None
        if size is not None and not self._status.Is_cancelled():
            came = self._status.Get_elements(MPI.BYTE)
            if came not in (size, MPI.UNDEFINED):
                raise ValueError(f"{came} bytes came for a tensor of {size}")
        return True

    def cancel(self) -> None:
        self._request.Cancel()
