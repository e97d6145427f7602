"""How a rank leaves a generation that has lost a rank: errors, the process group and its connections."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import traceback
from collections.abc import Iterator

_PEER_TROUBLE = re.compile(
    r"gloo|nccl|connection (?:closed|reset|refused|was)|socket|broken pipe|timed? ?out|abort|unhandled system error"
    r"|remote process|peer|store|process group|communicator",
    re.IGNORECASE,
)


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


def connections() -> Iterator[socket.socket]:
    """Yields the TCP connections of this process as duplicates, each open until the next. Listening sockets are left out."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, not a socket, or not connected
            if stat.S_ISSOCK(os.stat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as connection:
                    connection.getpeername()
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        yield connection


def sockets() -> set[int]:
    """Returns the inodes of this process's TCP connections, because numbers of descriptors are reused."""
    return {os.fstat(connection.fileno()).st_ino for connection in connections()}


def shut_down(inodes: set[int]) -> None:
    """Shuts connections down, so that threads that wait for them wake up. Their owner closes them."""
    for connection in connections():
        if os.fstat(connection.fileno()).st_ino in inodes:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
