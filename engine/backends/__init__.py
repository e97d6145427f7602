"""One module for each backend. To add one: a module with `SUMMARY`, `settings` and `check`, and its line below."""

from __future__ import annotations

import difflib
from typing import Protocol

from engine.backends import gloo
from engine.core.errors import UsageError
from engine.core.plan import BackendSettings, NodeFacts


class BackendModule(Protocol):
    """What a backend module offers."""

    SUMMARY: str

    def settings(self, *, one_machine: bool) -> BackendSettings:
        """The environment that every rank gets, and the device that ranks compute on."""
        ...

    def check(self, ranks: int, facts: NodeFacts) -> None:
        """Raises CheckError where this many ranks can't run on that node."""
        ...


BACKENDS: dict[str, BackendModule] = {"gloo": gloo}


def find_backend(name: str) -> BackendModule:
    """The module of a backend.

    Raises:
        UsageError: there is none of that name; the message has the nearest one.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    near = difflib.get_close_matches(name, BACKENDS, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(BACKENDS)}"
    raise UsageError(f"there is no backend {name!r}", hint=hint)
