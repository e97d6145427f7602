"""The process group over MPI: its creation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rankdeck.c10d import _group
from rankdeck.c10d._background import name_ranks
from rankdeck.c10d._mpi import job as mpi_job
from rankdeck.c10d._mpi import tensors as mpi_tensors
from rankdeck.c10d._mpi.agreement import Agreement
from rankdeck.c10d._mpi.collectives import Collectives
from rankdeck.c10d._mpi.job import Job
from rankdeck.c10d._mpi.messages import Messages
from rankdeck.c10d._operations import Operations


class ProcessGroup(_group.ProcessGroup):
    NAME = "mpi"

    def __init__(self, job: Job, name: str, ranks: Sequence[int], timeout: float) -> None:
        takes_cuda = mpi_tensors.takes_cuda()
        comm, transfers = job.form(name, ranks, timeout)
        messages = Messages(transfers, job.largest_tag)

        def free() -> None:
            comm.Free()
            transfers.Free()

        super().__init__(
            comm.rank,
            comm.size,
            Collectives(comm),
            Operations(job, name, comm.rank, Agreement(comm, messages), free, timeout),
            messages,
            takes_cuda,
        )

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
