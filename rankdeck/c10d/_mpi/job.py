"""The MPI job of this process: how groups of ranks form, the background thread, and the end of the process. No thread blocks inside MPI
on a rank that may be missing: it polls, with a deadline. And MPI is finalised only if no group has failed; otherwise the job is aborted,
because MPI_Finalize waits for every rank."""

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

from rankdeck._torch_compat import abort_group
from rankdeck.c10d._background import Background, name_ranks
from rankdeck.c10d._mpi import segments, stuck
from rankdeck.c10d._mpi.library import is_ours
from rankdeck.c10d._work import poll

_ABORT_DELAY = 5.0  # seconds that other handlers of an uncaught exception have before the job is aborted
_ANSWER_TIME = 1.0  # seconds after the deadline in which the first rank tells the others which ranks are missing

_LEAVE_TIME = 1.0  # seconds in which the background thread ends, whose calls of MPI do not wait

_SMALLEST_TAG_UB = 32767  # largest tag that every MPI supports


class Communicator(MPI.Intracomm):
    """An MPI communicator, with the fact that decides between implementations of collectives."""

    on_one_node = False  # whether all its ranks share memory


class Job(Background):
    """MPI_COMM_WORLD, and the duties of this process towards its other ranks. Raises DistBackendError if ranks are missing after `timeout`
    seconds."""

    def __init__(self, timeout: float) -> None:
        world = MPI.COMM_WORLD
        self.trouble = ""  # why MPI can't be finalised; empty if it can
        self._uncaught = False
        self.largest_tag = int(world.Get_attr(MPI.TAG_UB) or _SMALLEST_TAG_UB)
        if missing := meet(world, range(world.size), self.largest_tag, timeout):
            self.trouble = f"{name_ranks(missing)} did not call init_process_group"
            raise dist.DistBackendError(f"{self.trouble} within {timeout:g} s")
        self._comm = world.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        super().__init__("rankdeck mpi")
        self._excepthook = sys.excepthook
        sys.excepthook = self._see_exception
        atexit.register(self._end)

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    # groups

    def form(self, name: str, ranks: Sequence[int], timeout: float) -> tuple[Communicator, MPI.Intracomm]:
        """Creates the communicators of a group. All members must call this, and no other ranks. `name`: unique among groups of these ranks that
        form at the same time. Returns one communicator for collectives, and one for point-to-point operations.
        Raises torch.distributed.DistBackendError: members are missing; the message names them."""
        tag = zlib.crc32(f"{name} {list(ranks)}".encode()) % self.largest_tag
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
        """Replaces `sys.excepthook`: an uncaught exception ends the job, because the other ranks would wait for this one."""
        self._excepthook(kind, error, trace)
        if os.getpid() == self._pid and not MPI.Is_finalized():
            # Not yet: torch prints the traceback after this returns. The exit of the interpreter aborts, or this timer if it hangs.
            self._uncaught = True
            timer = threading.Timer(_ABORT_DELAY, self.abort, (f"uncaught {kind.__name__}",))
            timer.daemon = True
            timer.start()

    def see_trouble(self, why: str) -> None:
        """Records that a group has failed, so that MPI can't be finalised."""
        self.trouble = self.trouble or why

    def see_hang(self, why: str) -> None:
        """Aborts, because no error can be raised in a thread that hangs inside MPI."""
        self.abort(f"{why} (it hangs inside MPI, where no error can be raised)")

    def abort(self, why: str, *, is_told: bool = False) -> None:
        """Ends all ranks of the job, this one with exit status 1. In a run of rankdeck it ends only this rank: the profile decides
        what happens to the others. `is_told`: a traceback has said why."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if "RANKDECK_RUN" in os.environ:
            if not is_told:
                os.write(2, f"rankdeck: rank {self.rank} ends: {why}\n".encode())
            os._exit(1)
        os.write(2, f"rankdeck: rank {self.rank} aborts the MPI job: {why}\n".encode())
        MPI.COMM_WORLD.Abort(1)

    def leave_for_ever(self) -> None:
        """Ends what could call MPI: threads that hang inside it sleep for ever."""
        atexit.unregister(self._end)
        self._over = True
        self._wake()
        self._thread.join(_LEAVE_TIME)
        stuck.end_or_sleep(self.threads)
        segments.remove()

    def _end(self) -> None:
        if os.getpid() != self._pid or MPI.Is_finalized():
            return
        if self._uncaught:
            self.abort("uncaught exception", is_told=True)
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
            segments.remove()


_job: Job | None = None
_starting = threading.Lock()
_abandoned = threading.Event()  # set once no call may wait for other ranks any more


def abandon() -> None:
    """Ends each wait of this process for other ranks, because one of them is lost. Any thread may call this."""
    _abandoned.set()
    abort_group()


def leave() -> None:
    """Leaves the MPI job for ever, although other ranks of it may be lost. Afterwards this process does not call MPI, not even
    MPI_Finalize, which would wait for every rank."""
    abandon()
    if _job is not None:
        _job.leave_for_ever()


def join(timeout: float) -> Job:
    """Returns this process's job, which the first call creates. Argument and errors: see Job."""
    global _job
    if _abandoned.is_set():
        raise dist.DistBackendError("this process has left MPI, because a rank was lost")
    with _starting:
        if _job is None:
            _job = Job(timeout)
        return _job


def meet(comm: MPI.Intracomm, ranks: Sequence[int], tag: int, timeout: float) -> list[int]:
    """Waits until all of some ranks of a communicator have called this. The first rank finds the missing ones, and tells the others.
    `ranks`: the ranks, this one included; the same list on each. Returns the missing ranks; if empty, every rank knows that none is missing."""
    first, others = ranks[0], list(ranks[1:])
    deadline = time.monotonic() + timeout
    if comm.rank != first:
        here = comm.Isend([b"", 0, MPI.BYTE], dest=first, tag=tag)
        told = array("q", [0] * (len(ranks) + 1))
        answer = comm.Irecv([told, len(told), MPI.INT64_T], source=first, tag=tag)
        status = MPI.Status()
        late = deadline + _ANSWER_TIME
        if not poll(lambda: answer.Test(status), lambda: _is_over(late)):
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

    poll(are_all_here, lambda: _is_over(deadline))
    missing = sorted(arrivals)
    word = array("q", missing)
    words = [comm.Isend([word, len(word), MPI.INT64_T], dest=rank, tag=tag) for rank in others if rank not in arrivals]
    for request in arrivals.values():
        _cancel(request)
    MPI.Request.Waitall(words)
    return missing


def _is_over(deadline: float) -> bool:
    return _abandoned.is_set() or time.monotonic() > deadline


def _cancel(request: MPI.Request) -> None:
    request.Cancel()
    request.Wait()
