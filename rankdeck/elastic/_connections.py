"""The TCP connections of this process: which there are, and how one ends them under whoever waits at them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


def connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, as duplicates that are closed one after the other. Listening sockets are none."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, no socket, or one that is not connected
            if stat.S_ISSOCK(os.stat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as connection:
                    connection.getpeername()
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        yield connection


def sockets() -> set[int]:
    """The TCP connections of this process, each by its inode: the number of a descriptor is soon another's."""
    return {os.fstat(connection.fileno()).st_ino for connection in connections()}


def shut_down(inodes: set[int]) -> None:
    """Ends connections under whoever waits at them, and leaves it to their owner to close them."""
    for connection in connections():
        if os.fstat(connection.fileno()).st_ino in inodes:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
