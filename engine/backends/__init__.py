"""One module for each backend. To add a backend, write a module with the names in `BackendModule`, and add it below.

A profile may name several backends, one for each device: this module combines their settings and checks each of them.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from engine.backends import gloo, mpi, nccl, ucc
from engine.core.errors import CheckError
from engine.core.plan.environment import backends_in, devices_in
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, ProgramOutput

AUTOMATIC = ("nccl", "gloo")
"""Backends that `auto` tries, in this order; see decision 16."""

AUTO_SUMMARY = "nccl where every rank has a GPU, else gloo"


class BackendModule(Protocol):
    """A module of a backend."""

    SUMMARY: str

    ASKS_NODES: bool
    """Whether `check` needs facts about nodes: each node is asked before a plan is made."""

    PROGRAM: str
    """A program that the ranks' Python runs on each node before a plan is made, for `judge`; empty: none."""

    def settings(self, *, one_machine: bool) -> BackendSettings:
        """The settings of the backend. Raises CheckError if it can't run here."""
        ...

    def check(self, ranks: int, facts: NodeFacts) -> None:
        """Raises CheckError if this number of ranks can't run on that node."""
        ...

    def judge(self, output: ProgramOutput, plan: LaunchPlan) -> str:
        """Describes what ranks will use, from the output of PROGRAM; empty: unknown. Raises CheckError if they can't run."""
        ...

    def check_plan(self, plan: LaunchPlan) -> None:
        """Raises CheckError if the plan can't run."""
        ...


BACKENDS: dict[str, BackendModule] = {"gloo": gloo, "nccl": nccl, "mpi": mpi, "ucc": ucc}


def asks_nodes(name: str) -> bool:
    """Whether a backend needs facts about nodes before a plan is made."""
    return any(BACKENDS[backend].ASKS_NODES for backend in backends_in(name))


def program_of(name: str) -> str:
    """The program to run on each node before a plan is made; empty: none."""
    return "".join(
        BACKENDS[backend].PROGRAM for backend in backends_in(name)
    )  # a backend with a program is never combined


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """Describes what ranks will use, from the output of the program; empty: unknown. Raises CheckError if they can't run."""
    return "".join(BACKENDS[backend].judge(output, plan) for backend in backends_in(plan.backend.name))


def settings_of(name: str, *, one_machine: bool) -> BackendSettings:
    """The combined settings of the backends in a name.

    Args:
        name: `backend.name` of a profile.
        one_machine: whether all ranks are on one node.

    Raises:
        CheckError: a backend can't run here.
    """
    backends = backends_in(name)
    parts = [BACKENDS[backend].settings(one_machine=one_machine) for backend in backends]
    alone = [part for part in parts if part.device == "cpu" and part.name != "gloo"]
    if len(parts) > 1 and alone:
        raise CheckError(
            f"{alone[0].name} can't be combined with other backends: torch would use it for every device",
            hint=f'set backend.name to "{alone[0].name}", or to "cpu:gloo,cuda:nccl"',
        )
    for device, backend in devices_in(name).items():
        if (device, backend) == ("cpu", "nccl") or (device == "cuda" and backend in ("mpi", "ucc")):
            raise CheckError(
                f"{backend} can't be the backend for {device} alone",
                hint="use cpu:gloo,cuda:nccl, or name mpi or ucc without a device",
            )
    first = next((part for part in parts if part.device == "cuda"), parts[0])
    env = {variable: value for part in parts for variable, value in part.env.items()}
    return replace(first, name=name, env=env)


def check_node(name: str, ranks: int, facts: NodeFacts) -> None:
    """Raises CheckError if this number of ranks can't run on that node with every backend in a name."""
    for backend in backends_in(name):
        BACKENDS[backend].check(ranks, facts)


def check_plan(plan: LaunchPlan) -> None:
    """Raises CheckError if a plan can't run."""
    for backend in backends_in(plan.backend.name):
        BACKENDS[backend].check_plan(plan)
