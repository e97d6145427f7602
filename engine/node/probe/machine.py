"""Facts about a node: cores, memory, GPUs, network, and processes of earlier runs."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import sys
from typing import Any, Dict, List

from engine.node.limits import open_files, processes_left, shares
from engine.node.login import ends_with_login, lingers, may_leave
from engine.node.networks import interfaces
from engine.node.probe.allowed import cpu_limit, cpu_words, memory_limit, process_limits

Message = Dict[str, Any]
Paths = List[str]
MARK = "RANKDECK_MARK"  # environment variable that every process of a run inherits from its rank
WAITING = "."  # first character of the marks of processes that wait for a launch


def machine(question: Message) -> Message:
    """Returns facts about the node."""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": count_gpus(),
        "open_files": open_files(),
        "processes": processes_left(),
        "locked_memory": None if locked == resource.RLIM_INFINITY else locked,
        "memory": memory_limit(),
        "cpu_limit": cpu_limit(),
        "process_limits": process_limits(),
        "has_infiniband": bool(entries("/sys/class/infiniband")),
        "mpirun": shutil.which("mpirun") or shutil.which("mpiexec") or "",
        "interfaces": interfaces(),
        "leftovers": leftovers(),
        "ends_with": ends_run(),
        **_binding(question),
    }


def ends_run(root: str = "/") -> str:
    """Returns what ends a run that is launched here: as `ends_with_login`, after `leave_session`."""
    if may_leave(root) and shutil.which("busctl"):
        return "" if lingers(root) else "user"
    return ends_with_login(root)


def _binding(question: Message) -> Message:
    """Returns the CPUs of each rank there, or why they can't be bound; nothing if they are not to be."""
    if question.get("bind", "none") == "none":
        return {}
    environment = {**os.environ, **question["env"]} if question["device"] == "cuda" else None
    try:
        return {"cpus": [cpu_words(cpus) for cpus in shares(question["bind"], question["count"], environment)]}
    except ValueError as error:
        return {"cpus_trouble": str(error)}


def entries(folder: str) -> Paths:
    """Returns the names in a folder; none if it does not exist."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def count_gpus() -> int:
    """Counts NVIDIA devices in /dev."""
    return sum(bool(re.match(r"nvidia\d+\Z", name)) for name in entries("/dev"))


def leftovers() -> list[Message]:
    """Returns runs of this user that have processes here. `owned`: an agent runs, so they are not left over."""
    try:
        with open("/proc/net/unix") as file:
            sockets = file.read()
    except OSError:
        sockets = ""
    found: dict[str, Message] = {}
    for name in entries("/proc"):
        if not name.isdigit() or name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:  # ended, or another user's
            variables = dict(word.split(b"=", 1) for word in environ.read().split(b"\0") if b"=" in word)
            mark = os.fsdecode(variables.get(MARK.encode(), b""))
            # Processes that a rank has started, maybe this probe, belong to that rank's run.
            if not mark or mark[0] == WAITING or mark == os.environ.get(MARK):
                continue
            owned = f"agent-{mark}.sock" in sockets
            one = found.setdefault(mark, {"mark": mark, "run": "", "pids": [], "owned": owned})
            one["pids"].append(int(name))
            one["run"] = one["run"] or os.fsdecode(variables.get(b"RANKDECK_RUN", b""))
    for one in found.values():
        one["pids"].sort()
    return list(found.values())
