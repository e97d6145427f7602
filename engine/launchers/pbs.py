"""Launches commands on the nodes of a PBS job, which need no ssh: every command is a task of the job.

Written against the manual of PBS Professional and the source of OpenPBS; not tested on a real one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from engine.core.plan.plan import Reach
from engine.launchers.setup import with_setup

PROGRAM = Path(__file__).with_name("pbs_task.py")
"""Runs here and on the node, where Python and this file must be found under the same paths."""

COMMAND = (sys.executable, "-I", "-S", str(PROGRAM))  # the node and the command follow


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """The command line of a task on one node of the job that this process is part of. Raises ValueError: the node's name could be an option."""
    if node.startswith("-"):
        raise ValueError(f"{node!r} is not a valid node name")
    return [*COMMAND, node, *with_setup(reach.setup, command)]
