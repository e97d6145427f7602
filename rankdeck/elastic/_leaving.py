"""How a rank leaves a generation that has lost a rank: errors, the process group and its connections."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import re
import select
import socket
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Iterator

from rankdeck._torch_compat import abort_group, held_groups

_PEER_TROUBLE = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused|was)|socket|broken pipe|timed? ?out|abort|unhandled system error"
    r"|remote process|peer|store|process group|communicator",
    re.IGNORECASE,
)


_MPI_JOB = "rankdeck.c10d._mpi.job"  # imported by the first process group over MPI, and never without one


class PeerLostError(RuntimeError):
    """Another rank, and with it this generation, is lost."""


def may_be_peers_fault(error: BaseException) -> bool:
    """Whether an error has the message of a lost peer. Any other error comes from the script."""
    return bool(_PEER_TROUBLE.search(str(error)))


def words_of(error: BaseException) -> str:
    """Returns the first sentence of an error, without the location in torch's sources that precedes it."""
    text = re.sub(r"^\[[^\]]*\] *", "", str(error).strip()).split("\n")[0]
    return text.split(". ")[0][:200] or type(error).__name__


def let_go(error: BaseException) -> None:
    """Clears the frames of an exception: they refer to the DDP wrapper, which refers to the process group."""
    seen: BaseException | None = error
    while seen is not None:
        if seen.__traceback__ is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
        seen = seen.__context__ or seen.__cause__


def _own_sockets() -> Iterator[socket.socket]:
    """Yields the TCP sockets of this process as duplicates, each open until the next."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not a socket
            if stat.S_ISSOCK(os.stat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as own:
                    if own.family in (socket.AF_INET, socket.AF_INET6):
                        yield own


def connections() -> Iterator[socket.socket]:
    for own in _own_sockets():
        with contextlib.suppress(OSError):  # not connected
            own.getpeername()
            yield own


def sockets() -> set[int]:
    """Returns the inodes of this process's TCP connections, because numbers of descriptors are reused."""
    return {_inode(connection) for connection in connections()}


def listeners() -> set[int]:
    """Returns the inodes of this process's listening sockets."""
    return {_inode(own) for own in _own_sockets() if _listens(own)}


def shut_down(inodes: set[int]) -> None:
    """Shuts connections down, so that threads that wait for them wake up. Their owner closes them."""
    for connection in connections():
        if _inode(connection) in inodes:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def abandon_mpi() -> None:
    """Ends each wait for other ranks of the MPI job, if this process is in one. Any thread may call this."""
    if (job := sys.modules.get(_MPI_JOB)) is not None:
        job.abandon()


def leave_mpi() -> None:
    """Leaves the MPI job for ever, if this process is in one."""
    if (job := sys.modules.get(_MPI_JOB)) is not None:
        job.leave()


END_TIME = 0.5
"""Seconds that the end of a process group may take. It takes a thousandth, unless a thread of it never ends."""


def end_group(inodes: set[int]) -> None:
    """Ends the default process group, and waits for none of its threads for long.

    The end of a group joins its threads. With gloo of torch 2.13, one of them may wait until the group's timeout: if a collective fails in the
    middle of a message, its buffer is gone, and the connection of that message reads nothing more, not even its own end
    (`Pair::prepareRead`). The collective that was queued behind it then waits for this connection. So the group ends in a thread of its own.
    `inodes` are those of the group's sockets.
    """
    groups = held_groups()
    shut_down(inodes)  # wakes peers too
    abort_group()
    gc.collect()  # the DDP wrapper is part of a reference cycle
    thread = threading.Thread(target=groups.clear, name="rankdeck elastic end", daemon=True)
    thread.start()
    thread.join(END_TIME)
    if thread.is_alive():
        _silence(inodes)


_EPOLL_CTL_MOD = 3  # of <sys/epoll.h>


class _Event(ctypes.Structure):
    """`struct epoll_event`."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def _silence(inodes: set[int]) -> None:
    """Lets connections that nobody reads wake their thread once and not for ever: their end is an event as long as it is not read."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") != "anon_inode:[eventpoll]":
                continue
            with open(f"/proc/self/fdinfo/{name}") as file:
                watched = re.findall(r"tfd: *(\d+) +events: *([0-9a-f]+) +data: *([0-9a-f]+)", file.read())
            for number, events, data in watched:
                if os.fstat(int(number)).st_ino in inodes:
                    event = _Event(int(events, 16) | select.EPOLLET, int(data, 16))
                    libc.epoll_ctl(int(name), _EPOLL_CTL_MOD, int(number), ctypes.byref(event))


def stand_in(known: set[int], world: int) -> None:
    """Connects to the group that forms in this process in place of its peers, and closes the connections again.

    Of two ranks of gloo, one listens. It waits for the connection of the other, and has no socket that could be shut down. A connection
    begins with the number of its pair, counted from 0 (`Listener::haveConnection`). A rank that gets one for a peer that is
    lost goes on, and finds the connection closed.

    Args:
        known: inodes of the listening sockets that existed before the group.
        world: number of ranks.
    """
    for own in _own_sockets():
        if _listens(own) and _inode(own) not in known:
            for pair in range(world):
                with contextlib.suppress(OSError), socket.socket(own.family) as peer:
                    peer.settimeout(1.0)
                    peer.connect(own.getsockname())
                    peer.sendall(struct.pack("=q", pair))


def _inode(own: socket.socket) -> int:
    return os.fstat(own.fileno()).st_ino


def _listens(own: socket.socket) -> bool:
    return bool(own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
