"""What a node has: cores, memory, GPUs, network, and what earlier runs left."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import sys
from typing import Any, Dict, List  # noqa: UP035

from engine.node.networks import interfaces

Message = Dict[str, Any]  # noqa: UP006 - evaluated when it is imported, by Python 3.8 too
Paths = List[str]  # noqa: UP006

MARK = "RANKDECK_MARK"
"""Environment variable that every process of a run inherits from its rank."""

STANDBY = ".standby-"
"""Beginning of the marks of what an app keeps warm: it ends with the app."""

NO_LIMIT = 1 << 60
"""The kernel writes "no limit" of memory as a number near 2**63."""


def machine(question: Message) -> Message:
    """What the node has."""
    files, locked = (resource.getrlimit(what)[0] for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK))
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": count_gpus(),
        "open_files": None if files == resource.RLIM_INFINITY else files,
        "locked_memory": None if locked == resource.RLIM_INFINITY else locked,
        "memory": memory_limit(),
        "has_infiniband": bool(entries("/sys/class/infiniband")),
        "mpirun": shutil.which("mpirun") or shutil.which("mpiexec") or "",
        "interfaces": interfaces(),
        "leftovers": leftovers(),
    }


def entries(folder: str) -> Paths:
    """Names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def count_gpus() -> int:
    """NVIDIA devices that the kernel shows."""
    return sum(bool(re.match(r"nvidia\d+\Z", name)) for name in entries("/dev"))


def memory_limit() -> int | None:
    """Bytes of memory that this process's control groups allow at most; None where they set no limit. The smallest on the way
    up counts, of version 2 and of version 1."""
    limits = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("/sys/fs/cgroup", "memory.max")
            )
            parts = path.strip("/").split("/") if path.strip("/") else []
            for depth in range(len(parts) + 1):
                with contextlib.suppress(OSError, ValueError), open(os.path.join(root, *parts[:depth], name)) as limit:
                    limits.append(int(limit.read()))  # "max" is no number
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def leftovers() -> list[Message]:
    """Runs of this user that have processes here. `owned`: an agent looks after them, so they are no leftovers."""
    try:
        with open("/proc/net/unix") as file:
            sockets = file.read()
    except OSError:
        sockets = ""
    found: dict[str, Message] = {}
    for name in entries("/proc"):
        if not name.isdigit() or name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:  # ended, or somebody else's
            variables = dict(word.split(b"=", 1) for word in environ.read().split(b"\0") if b"=" in word)
            mark = os.fsdecode(variables.get(MARK.encode(), b""))
            # Whatever a rank has started itself, this probe perhaps, is part of that rank's run.
            if not mark or mark.startswith(STANDBY) or mark == os.environ.get(MARK):
                continue
            owned = f"agent-{mark}.sock" in sockets
            one = found.setdefault(mark, {"mark": mark, "run": "", "pids": [], "owned": owned})
            one["pids"].append(int(name))
            one["run"] = one["run"] or os.fsdecode(variables.get(b"RANKDECK_RUN", b""))
    for one in found.values():
        one["pids"].sort()
    return list(found.values())
