"""The program that mpirun starts: instead of a rank `python -I -S mpi_proxy.py FOLDER ATTEMPT`, and instead of an `ssh` to another node
`… mpi_proxy.py FOLDER ATTEMPT HOST COMMAND…`. FOLDER is the agent's folder on this node.

Instead of a rank, it sends the agent what mpirun has given it (its environment, and the descriptors of MPICH's connection), and the agent
starts the rank like any other. Instead of an `ssh`, it lets the agent on that node run the command. It stays until the agent releases it:
when one of its processes ends, mpirun ends all of them, but what happens to other ranks depends on the profile. If the agent is
replaced, it registers with the next one. Standard library only; Python 3.8 and later.
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

RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")  # of Open MPI, MPICH, and others with PMIx
AGENT_TIMEOUT = 3600.0  # seconds without an agent after which this process ends: longer than any lease


def connect(folder: str) -> socket.socket:
    """Connects to the agent, whose socket may have moved."""
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
    """Registers with the agent, and again if the agent is replaced. Returns the status that the agent releases it with."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    body = json.dumps(message).encode()
    frame = struct.pack(">I", len(body)) + body
    deadline = time.monotonic() + AGENT_TIMEOUT
    while time.monotonic() < deadline:
        try:
            wire = connect(folder)
            sent = wire.sendmsg([frame], rights)
            wire.sendall(frame[sent:])
            word = wire.recv(1)
            if word:
                return int(word)
            deadline = time.monotonic() + AGENT_TIMEOUT
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
        sys.stderr.write("rankdeck: mpirun sets none of " + ", ".join(RANKS) + "\n")
        return 1
    message = {"type": "proxy", "attempt": attempt, "rank": rank, "pid": os.getpid(), "env": dict(os.environ)}
    return wait_for_word(folder, message, [int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])


if __name__ == "__main__":
    sys.exit(main())
