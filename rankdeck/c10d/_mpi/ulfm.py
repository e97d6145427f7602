"""A dead rank comes back into the MPI job, with ULFM of Open MPI 5 (`mpirun --with-ft ulfm`). The other ranks form a communicator without it
(MPIX_Comm_shrink). They start a process of mpirun, which holds a place for the new rank, and merge with it. Then each rank gets its old number.

Over shared memory, Open MPI sees no death of a process. mpirun sees the death of the process that holds its place, and tells it to all. So the other
ranks on that machine kill the process of mpirun when they learn of the death.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rankdeck.c10d._mpi import stuck

if TYPE_CHECKING:
    from mpi4py import MPI

R = TypeVar("R")

PLACE = "MPI_PLACE"  # variable with the pid of the process of mpirun that holds the place of this rank

_GIVEN = ("OMPI_", "OPAL_", "PMIX_", "PRTE_", "MPI_")  # prefixes of variables that mpirun sets for ranks

LONGEST_TIME = 20.0
"""Seconds in which the ranks meet in MPI again; otherwise they do over gloo. One new rank takes 1 to 5 s, on a busy machine too. Open MPI itself
gives up after a minute."""

POLL_INTERVAL = 0.002


def place() -> str:
    """Returns host, process, and process of mpirun of this rank, for the other ranks."""
    pid, proxy = os.getpid(), int(os.environ.get(PLACE, "0"))
    return json.dumps([socket.gethostname(), [pid, _start(pid)], [proxy, _start(proxy)]])


def kill_places_of_the_dead(places: Sequence[str]) -> None:
    """Kills the processes of mpirun on this machine whose ranks are dead. `places`: from `place`, of all ranks."""
    for text in filter(None, places):
        host, (pid, start), (proxy, proxy_start) = json.loads(text)
        if proxy and host == socket.gethostname() and _start(pid) != start and _start(proxy) == proxy_start:
            with contextlib.suppress(OSError):
                os.kill(proxy, signal.SIGKILL)


def _start(pid: int) -> int:
    """Returns when a process has started, in ticks since the start of the machine; 0: it does not live."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def wait_in_thread(function: Callable[[], R], is_over: Callable[[], bool]) -> R:
    """Returns the result of a function that may hang, and so runs in a thread. Raises RuntimeError: `is_over` returned True, or the time
    is over."""
    found: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="rankdeck mpi rejoin", daemon=True)
    thread.start()
    end = time.monotonic() + LONGEST_TIME
    while thread.is_alive():
        if is_over() or time.monotonic() > end:
            stuck.end_or_sleep([thread])
            raise RuntimeError("a peer is lost")
        thread.join(POLL_INTERVAL)
    if errors:
        raise RuntimeError(f"a peer may be lost: {errors[0]}") from errors[0]
    return found[0]


def regroup(world: MPI.Intracomm, rank: int, missing: Sequence[int], prefix: str) -> MPI.Intracomm:
    """Returns a communicator of all ranks, whose numbers are those of before. All living ranks call this, and new ones `come_back`.

    Args:
        world: the communicator of before. A rank of it is known to be dead.
        rank: of this process.
        missing: the ranks that come back.
        prefix: beginning of the paths of files for them.
    """
    from mpi4py import MPI

    left = world.Shrink()
    assert isinstance(left, MPI.Intracomm)
    return _in_order(_start_all(left, missing, prefix), rank)


def _start_all(comm: MPI.Intracomm, missing: Sequence[int], prefix: str) -> MPI.Intracomm:
    """Starts a process of mpirun for each rank, and merges the rank with a communicator. Each is a job of its own: where several are one, Open MPI
    5.0 may end the others when one of them dies."""
    from mpi4py import MPI

    for number in missing:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        with open(f"/proc/{os.environ[PLACE]}/cmdline") as file:
            command = file.read().rstrip("\0").split("\0")
        command = command[: command.index("-S") + 4]
        comm = comm.Spawn(command[0], [*command[1:], f"{prefix} {number}"]).Merge(high=False)
    return comm


def come_back(rank: int, missing: Sequence[int], prefix: str, is_over: Callable[[], bool]) -> MPI.Intracomm:
    """Takes the place that the other ranks have made for this one, and initialises MPI. Returns a communicator of all ranks."""
    path = f"{prefix}{rank}"
    while not os.path.exists(path):
        if is_over():
            raise RuntimeError("a peer is lost")
        time.sleep(POLL_INTERVAL)
    with open(path) as file:
        given = json.load(file)
    os.unlink(path)
    os.environ.update({name: value for name, value in given.items() if name.startswith(_GIVEN)})
    os.environ.update(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_mpi_initial_errhandler="mpi_errors_return")
    from rankdeck.c10d._mpi import library

    library.load(_initialize)
    from mpi4py import MPI

    parent = MPI.Comm.Get_parent()
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF, parent):
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    later = missing[missing.index(rank) + 1 :]
    return _in_order(_start_all(parent.Merge(high=True), later, prefix), rank)


def _initialize() -> None:
    """Initialises Open MPI without the lock of the interpreter: it waits for the ranks that have started this process, and they may be lost."""
    multiple, provided = 3, ctypes.c_int()
    ctypes.CDLL("libmpi.so.40").MPI_Init_thread(None, None, multiple, ctypes.byref(provided))


def _in_order(merged: MPI.Intracomm, rank: int) -> MPI.Intracomm:
    from mpi4py import MPI

    merged.Set_errhandler(MPI.ERRORS_RETURN)
    comm = merged.Split(0, rank)
    assert isinstance(comm, MPI.Intracomm)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return comm
