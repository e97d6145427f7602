"""Unix sockets."""

from __future__ import annotations

import socket
import struct


def peer_of(wire: socket.socket) -> tuple[int, int]:
    """Returns (pid, user id) of the process at the other end, or of the listening process if the connection is not accepted yet."""
    pid, user, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user
