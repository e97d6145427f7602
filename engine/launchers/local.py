"""Launches commands as child processes on this machine."""

import os
import re
import sys
from collections.abc import Sequence

from engine.core.plan.plan import NodeFacts, Reach
from engine.launchers.setup import with_setup


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """The command itself, or a shell that runs `launch.setup` first."""
    return with_setup(reach.setup, command)


def facts(node: str) -> NodeFacts:
    """This machine's cores that this process may use, its NVIDIA devices, and the Python that runs rankdeck."""
    try:
        gpus = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    except OSError:
        gpus = 0
    return NodeFacts(name=node, cores=len(os.sched_getaffinity(0)), gpus=gpus, python=sys.executable)
