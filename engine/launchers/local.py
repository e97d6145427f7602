"""local: a child process on this machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from engine.core.failures.ssh import EXIT_SETUP_FAILED
from engine.core.plan.plan import NodeFacts, Reach

WITH_SETUP = ("sh", "-c", 'exec bash -lc "$0" "$@" 8<&0 9>&1 </dev/null >&2')
"""Runs a login shell (which knows `module` and `conda`) with the words that follow. The user's profile can neither eat this
process's standard input nor print into its output, which are an agent's wire: they are kept as 8 and 9."""

AFTER_SETUP = (
    f'trap "set +e; exit {EXIT_SETUP_FAILED}" EXIT; rankdeck_command=("${{@:2}}"); eval "set --; $1" 8<&- 9>&-; '
    'test $? = 0 || exit; trap - EXIT; exec "${rankdeck_command[@]}" <&8 >&9 8<&- 9>&-'
)
"""What that login shell does: the user's lines, `$1`, and then the command that follows them, in what they made of the
environment. The lines see no arguments, since a script that they source would take the command's for its own. That they
failed is told by the status, also where they `exit` or `set -e`. One line without a single quote, a backslash or `!`: any
login shell can be given it as a word."""


def argv(node: str, command: Sequence[str], reach: Reach) -> list[str]:
    """The command itself, or a shell that runs the user's lines before."""
    return with_setup(reach.setup, command)


def with_setup(setup: str, command: Sequence[str]) -> list[str]:
    """A command that runs the user's lines first; the same command where there are none."""
    return [*WITH_SETUP, AFTER_SETUP, "setup", setup, *command] if setup else list(command)


def facts(node: str) -> NodeFacts:
    """Cores that this process may use, NVIDIA devices that the kernel shows, and the Python that rankdeck runs under."""
    try:
        gpus = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    except OSError:
        gpus = 0
    return NodeFacts(name=node, cores=len(os.sched_getaffinity(0)), gpus=gpus, python=sys.executable)
