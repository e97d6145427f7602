"""This process as a part of one MPI job: how groups of ranks find together, what goes on in the background, and how it ends.

Two rules. Nobody waits inside MPI for a rank that may not come: whoever waits asks again and again, with a deadline. And MPI is
finalised only while all is well; otherwise the job is aborted, since MPI_Finalize waits for every rank.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Sequence
from types import TracebackType

import torch.distributed as dist
from mpi4py import MPI

from rankdeck.c10d._background import Background, name_ranks
from rankdeck.c10d._mpi.library import is_ours
from rankdeck.c10d._work import poll

_LAST_WORDS = 5.0
"""Seconds that whoever else handles an uncaught exception has before the job is aborted."""

_UNCAUGHT = "uncaught exception"

_ANSWER_TIME = 1.0
"""Seconds beyond the deadline in which the first rank tells the others who is missing."""


_SMALLEST_TAG_UB = 32767
"""What every MPI allows."""


class Communicator(MPI.Intracomm):
    """A communicator of MPI, with what decides how to use it."""

    on_one_node = False
    """Whether all its ranks share memory."""


class Job(Background):
    """MPI_COMM_WORLD, and what this process owes to it.

    Args:
        timeout: seconds within which all ranks are here.

    Raises:
        torch.distributed.DistBackendError: they are not.
    """

    def __init__(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self.trouble = ""
        """Why MPI can't be finalised any more; empty while it can."""
        self._uncaught = False
        self._comm, request = MPI.COMM_WORLD.Idup()
        if not poll(request.Test, lambda: time.monotonic() > deadline):
            self.trouble = "not all ranks called init_process_group"
            raise dist.DistBackendError(f"{self.trouble} within {timeout:g} s")
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._largest_tag = int(self._comm.Get_attr(MPI.TAG_UB) or _SMALLEST_TAG_UB)
        super().__init__("rankdeck mpi")
        self._excepthook = sys.excepthook
        sys.excepthook = self._see_exception
        atexit.register(self._end)

    @property
    def rank(self) -> int:
        """Of this process among all."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """How many ranks the job has."""
        return self._comm.size

    # groups

    def form(self, name: str, ranks: Sequence[int], timeout: float) -> tuple[Communicator, MPI.Intracomm]:
        """Makes the communicators of a group. Only its members call this, all of them.

        Args:
            name: what the members call the group; no other group with these ranks is formed under it at the same time.
            ranks: of the members in MPI_COMM_WORLD, in the order of the group.
            timeout: seconds within which all members call this.

        Returns:
            One for collectives, and one for point-to-point operations.

        Raises:
            torch.distributed.DistBackendError: members are missing; it names them.
        """
        tag = zlib.crc32(f"{name} {list(ranks)}".encode()) % self._largest_tag
        missing = meet(self._comm, ranks, tag, timeout)
        if missing:
            self.trouble = f"process group {name!r} could not be made"
            raise dist.DistBackendError(f"{self.trouble}: {name_ranks(missing)} did not come within {timeout:g} s")
        comm = Communicator(self._comm.Create_group(self._comm.group.Incl(ranks), tag))
        transfers, node = comm.Dup(), comm.Split_type(MPI.COMM_TYPE_SHARED)
        comm.on_one_node = node.size == comm.size
        node.Free()
        for one in (comm, transfers):
            one.Set_errhandler(MPI.ERRORS_RETURN)
        return comm, transfers

    # the end

    def _see_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """In place of `sys.excepthook`: an uncaught exception ends the job, or the other ranks would wait for this one."""
        self._excepthook(kind, error, trace)
        if os.getpid() == self._pid and not MPI.Is_finalized():
            # Not now: torch prints the traceback only after this has returned. When the interpreter ends, unless that hangs.
            self._uncaught = True
            timer = threading.Timer(_LAST_WORDS, self.abort, (f"uncaught {kind.__name__}",))
            timer.daemon = True
            timer.start()

    def see_trouble(self, why: str) -> None:
        """A group is broken, so that MPI can't be finalised."""
        self.trouble = self.trouble or why

    def see_hang(self, why: str) -> None:
        """A thread hangs inside MPI, where no error can be raised."""
        self.abort(f"{why} (it hangs inside MPI, where no error can be raised)")

    def abort(self, why: str) -> None:
        """Ends all ranks of the job, this one with exit status 1. In a run of rankdeck only this one: what becomes of the others
        is for the profile to decide, and its agent sees to it."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if "RANKDECK_RUN" in os.environ:
            if why != _UNCAUGHT:
                os.write(2, f"rankdeck: rank {self.rank} ends: {why}\n".encode())
            os._exit(1)
        os.write(2, f"rankdeck: rank {self.rank} aborts the MPI job: {why}\n".encode())
        MPI.COMM_WORLD.Abort(1)

    def _end(self) -> None:
        """At the exit of the interpreter."""
        if os.getpid() != self._pid or MPI.Is_finalized():
            return
        if self._uncaught:
            self.abort(_UNCAUGHT)
        with self._lock:
            members = tuple(self._members)
        for member in members:
            member.shutdown()
        poll(lambda: not self._leaving, lambda: bool(self.trouble))
        self._over = True
        self._wake()
        if self.trouble:
            self.abort(self.trouble)
        self._thread.join()
        if is_ours():
            self._comm.Free()
            MPI.Finalize()


_job: Job | None = None
_starting = threading.Lock()


def join(timeout: float) -> Job:
    """This process's part in the job, which begins with the first call. Seconds, and what is raised: see Job."""
    global _job
    with _starting:
        if _job is None:
            _job = Job(timeout)
        return _job


def meet(comm: MPI.Intracomm, ranks: Sequence[int], tag: int, timeout: float, name_all: bool = True) -> list[int]:
    """Waits until all of some ranks of a communicator are here; the first of them finds out who is not, and tells the others.

    Args:
        comm: where nothing else is sent with this tag.
        ranks: who is waited for, this one among them; the same list on each.
        tag: the same on each.
        timeout: seconds.
        name_all: whether to wait for the rest once one is overdue, in order to name all of them; else one is named.

    Returns:
        Who is missing. Empty: nobody, and every rank has been told so.
    """
    first, others = ranks[0], list(ranks[1:])
    deadline = time.monotonic() + timeout
    if comm.rank != first:
        here = comm.Isend([b"", 0, MPI.BYTE], dest=first, tag=tag)
        told = array("q", [0] * (len(ranks) + 1))
        answer = comm.Irecv([told, len(told), MPI.INT64_T], source=first, tag=tag)
        status = MPI.Status()
        late = deadline + _ANSWER_TIME
        if not poll(lambda: answer.Test(status), lambda: time.monotonic() > late):
            _cancel(answer)
            return [first]
        here.Wait()
        return list(told[: status.Get_count(MPI.INT64_T)])
    arrivals = {rank: comm.Irecv([bytearray(0), 0, MPI.BYTE], source=rank, tag=tag) for rank in others}

    def are_all_here() -> bool:
        for rank in others:
            if rank in arrivals and arrivals[rank].Test():
                del arrivals[rank]
        return not arrivals

    poll(are_all_here, lambda: time.monotonic() > deadline)
    missing = sorted(arrivals) if name_all else sorted(arrivals)[:1]
    word = array("q", missing)
    words = [comm.Isend([word, len(word), MPI.INT64_T], dest=rank, tag=tag) for rank in others if rank not in arrivals]
    for request in arrivals.values():
        _cancel(request)
    MPI.Request.Waitall(words)
    return missing


def _cancel(request: MPI.Request) -> None:
    """Takes a receive back."""
    request.Cancel()
    request.Wait()
