"""How to start a command on a node. To add a launcher, see "How to add" in CONTRIBUTING.md."""

from collections.abc import Callable, Sequence

from engine.core.plan.plan import Reach
from engine.core.plan.profile import Transport
from engine.launchers import local, pbs, slurm, ssh

Launcher = Callable[[str, Sequence[str], Reach], list[str]]
"""Gives the local command that runs a command on a node, with this process's standard input and output. The words of the command arrive
unchanged at the node's `execve`. Standard input must begin with `engine.launchers.setup.setup_input(reach.setup)`."""

LAUNCHERS: dict[Transport, Launcher] = {"local": local.argv, "ssh": ssh.argv, "slurm": slurm.argv, "pbs": pbs.argv}
