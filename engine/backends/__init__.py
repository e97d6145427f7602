"""One module for each backend. To add one: a module with what `BackendModule` names, and its line below."""

from __future__ import annotations

from typing import Protocol

from engine.backends import gloo, mpi, ucc
from engine.core.plan import BackendSettings, LaunchPlan, NodeFacts


class BackendModule(Protocol):
    """What a backend module offers."""

    SUMMARY: str

    def settings(self, *, one_machine: bool) -> BackendSettings:
        """The environment that every rank gets, and the device that ranks compute on."""
        ...

    def check(self, ranks: int, facts: NodeFacts) -> None:
        """Raises CheckError where this many ranks can't run on that node."""
        ...

    def check_plan(self, decided: LaunchPlan, *, is_here: bool) -> None:
        """Raises CheckError where the whole can't run. `is_here`: some of its ranks run on this machine."""
        ...


BACKENDS: dict[str, BackendModule] = {"gloo": gloo, "mpi": mpi, "ucc": ucc}
