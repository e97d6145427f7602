"""How an agent is reached. To add a way: a module with `boot_argv` and `facts`, and its line below."""

from __future__ import annotations

from typing import Protocol

from engine.core.plan import NodeFacts
from engine.launchers import local


class Launcher(Protocol):
    """What a launcher module offers."""

    def boot_argv(self, node: str, python: str, program: str, size: int) -> list[str]:
        """The command whose stdin takes `size` bytes of the agent's source and then frames, and whose stdout gives them."""
        ...

    def facts(self, node: str) -> NodeFacts:
        """What the node has, found without starting torch."""
        ...


LAUNCHERS: dict[str, Launcher] = {"local": local}
