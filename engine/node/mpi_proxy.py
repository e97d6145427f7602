"""What mpirun starts: in a rank's stead `python -I -S mpi_proxy.py FOLDER ATTEMPT`, and `… mpi_proxy.py FOLDER ATTEMPT HOST COMMAND…`
in place of an `ssh` to another node. FOLDER is that of the agent on this node.

In a rank's stead it gives the agent what mpirun has given it (environment, and the descriptors that MPICH talks through), so that
the agent starts the rank as it starts any other. In place of an `ssh` it has the agent there start the command. Then it stays until
the agent lets it go: when one of its processes ends, mpirun ends all of them, and what becomes of the others is for the profile to
decide. If the agent is replaced, it tells the next one that it is there. Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
import time
from typing import Any

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Variables of Open MPI, of MPICH, and of whatever else speaks PMIx."""

PATIENCE = 3600.0
"""Seconds without an agent after which nobody can want this process any more: longer than any lease."""


def connect(folder: str) -> socket.socket:
    """A connection to the agent, which may listen elsewhere than a moment ago."""
    with open(os.path.join(folder, "socket")) as file:
        path = file.read()
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.connect(path)
    _, user, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        wire.close()
        raise PermissionError(f"{path} belongs to another user")
    return wire


def wait_for_word(folder: str, message: dict[str, Any], descriptors: list[int]) -> int:
    """Tells the agent that this process is there, as often as it takes. Returns the status that it is let go with."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    body = json.dumps(message).encode()
    frame = struct.pack(">I", len(body)) + body
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            wire = connect(folder)
            sent = wire.sendmsg([frame], rights)
            wire.sendall(frame[sent:])
            word = wire.recv(1)
            if word:
                return int(word)
            deadline = time.monotonic() + PATIENCE
        except OSError:
            pass
        time.sleep(0.1)
    return 1


def main() -> int:
    """Returns the exit status that mpirun sees."""
    folder, attempt = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        host, *command = sys.argv[3:]
        return wait_for_word(
            folder, {"type": "launcher", "attempt": attempt, "host": host, "command": " ".join(command)}, []
        )
    rank = next((int(os.environ[name]) for name in RANKS if name in os.environ), None)
    if rank is None:
        sys.stderr.write("rankdeck: mpirun gives its processes no rank that is known here\n")
        return 1
    message = {"type": "proxy", "attempt": attempt, "rank": rank, "pid": os.getpid(), "env": dict(os.environ)}
    return wait_for_word(folder, message, [int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])


if __name__ == "__main__":
    sys.exit(main())
