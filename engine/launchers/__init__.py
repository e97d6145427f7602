"""How a command is started on a node. To add a way: a module with `argv`, and its line below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.core.plan.plan import Reach, Transport
from engine.launchers import local, ssh


class Launcher(Protocol):
    """What a launcher module offers."""

    def argv(self, node: str, command: Sequence[str], reach: Reach) -> list[str]:
        """What is run on this machine so that a command runs on that node, with stdin and stdout of this process.

        Args:
            node: its name.
            command: words that reach the node's `execve` as they are.
            reach: what the user wants of every connection.
        """
        ...


LAUNCHERS: dict[Transport, Launcher] = {"local": local, "ssh": ssh}
