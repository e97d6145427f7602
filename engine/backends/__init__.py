"""One module for each backend. To add one: a module with what `BackendModule` names, and its line below.

A profile may name several, one for each device: what they want is put together here, and each is asked whether it can run.
"""

from __future__ import annotations

from typing import Protocol

from engine.backends import gloo, mpi, nccl, ucc
from engine.core.errors import CheckError
from engine.core.plan.backend_names import backends_in, devices_in
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, ProgramOutput

AUTOMATIC = ("nccl", "gloo")
"""What `auto` tries, the first that can run; see decision 16."""

AUTO_SUMMARY = "nccl where every rank has a GPU, else gloo"


class BackendModule(Protocol):
    """What a backend module offers."""

    SUMMARY: str

    ASKS_NODES: bool
    """Whether `check` wants to know what the nodes have: each is asked before a plan is made."""

    PROGRAM: str
    """What the Python of the ranks is to run on each node before a plan is made, for `judge`; empty: nothing."""

    def settings(self, *, one_machine: bool) -> BackendSettings:
        """The environment that every rank gets, and the device that ranks compute on."""
        ...

    def check(self, ranks: int, facts: NodeFacts) -> None:
        """Raises CheckError where this many ranks can't run on that node."""
        ...

    def judge(self, output: ProgramOutput, plan: LaunchPlan) -> str:
        """What ranks find where PROGRAM said that, in words; empty: nobody knows. Raises CheckError where they can't run."""
        ...

    def check_plan(self, plan: LaunchPlan) -> None:
        """Raises CheckError where the whole can't run."""
        ...


BACKENDS: dict[str, BackendModule] = {"gloo": gloo, "nccl": nccl, "mpi": mpi, "ucc": ucc}


def asks_nodes(name: str) -> bool:
    """Whether nodes have to be asked before it is known that a backend can run there."""
    return any(BACKENDS[backend].ASKS_NODES for backend in backends_in(name))


def program_of(name: str) -> str:
    """What is to be run on each node before it is known that a backend can run there; empty: nothing."""
    return "".join(BACKENDS[backend].PROGRAM for backend in backends_in(name))  # only one that stands alone has one


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """What ranks find on a node whose Python said that, in words; empty: nobody knows. Raises CheckError where they can't run."""
    return "".join(BACKENDS[backend].judge(output, plan) for backend in backends_in(plan.backend.name))


def settings_of(name: str, *, one_machine: bool) -> BackendSettings:
    """What a backend adds to a plan, or several together.

    Args:
        name: as a profile has it.
        one_machine: whether all ranks are on one node.

    Raises:
        CheckError: it can't run here.
    """
    backends = backends_in(name)
    parts = [BACKENDS[backend].settings(one_machine=one_machine) for backend in backends]
    alone = [part for part in parts if part.device == "cpu" and part.name != "gloo"]
    if len(parts) > 1 and alone:
        raise CheckError(
            f"{alone[0].name} can't be one of several backends: torch would use it for every device",
            hint=f'set backend.name to "{alone[0].name}", or to "cpu:gloo,cuda:nccl"',
        )
    for device, backend in devices_in(name).items():
        if (device, backend) == ("cpu", "nccl") or (device == "cuda" and backend in ("mpi", "ucc")):
            raise CheckError(
                f"{backend} can't be the backend for {device} alone",
                hint="cpu:gloo,cuda:nccl is what most want; mpi and ucc are named without a device",
            )
    first = next((part for part in parts if part.device == "cuda"), parts[0])
    env = {variable: value for part in parts for variable, value in part.env.items()}
    return BackendSettings(
        name=name,
        device=first.device,
        env=env,
        mpi=first.mpi,
        start_together=first.start_together,
        found=first.found,
        library_path=first.library_path,
        library_links=first.library_links,
    )


def check_node(name: str, ranks: int, facts: NodeFacts) -> None:
    """Raises CheckError where this many ranks can't run on that node, with every backend that the name is made of."""
    for backend in backends_in(name):
        BACKENDS[backend].check(ranks, facts)


def check_plan(plan: LaunchPlan) -> None:
    """Raises CheckError where a plan can't run."""
    for backend in backends_in(plan.backend.name):
        BACKENDS[backend].check_plan(plan)
