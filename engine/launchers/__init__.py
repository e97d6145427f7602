"""How to start a command on a node. To add a launcher, see "How to add" in CONTRIBUTING.md."""

from collections.abc import Sequence
from typing import Protocol

from engine.core.plan.plan import Reach
from engine.core.plan.profile import Transport
from engine.launchers import local, pbs, slurm, ssh


class Launcher(Protocol):
    """The interface of a launcher module."""

    def argv(self, node: str, command: Sequence[str], reach: Reach) -> list[str]:
        """The local command that runs a command on a node, with this process's standard input and output.

        Its standard input must begin with `engine.launchers.setup.setup_input(reach.setup)`.

        Args:
            command: words that arrive unchanged at the node's `execve`.
            reach: the user's settings for connections.
        """


LAUNCHERS: dict[Transport, Launcher] = {"local": local, "ssh": ssh, "slurm": slurm, "pbs": pbs}
