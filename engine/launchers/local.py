"""local: the agent is a child process on this machine, booted through its stdin like on any other."""

from __future__ import annotations

import os
import re
import sys

from engine.core.plan import NodeFacts


def boot_argv(node: str, python: str, program: str, size: int) -> list[str]:
    """`-I`: the user's PYTHONPATH is for ranks; a `socket.py` that stands on it must not stop the agent."""
    return [python, "-I", "-c", program, str(size)]


def facts(node: str) -> NodeFacts:
    """Cores that this process may use, NVIDIA devices that the kernel shows, and the Python that rankdeck runs under."""
    try:
        gpus = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    except OSError:
        gpus = 0
    return NodeFacts(name=node, cores=len(os.sched_getaffinity(0)), gpus=gpus, python=sys.executable)
