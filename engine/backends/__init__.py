"""One module for each backend. To add a backend, write a module with what `Backend` takes, and add it below.

A profile may name several backends, one for each device: this module combines their settings and checks each of them.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from engine.backends import gloo, mpi, nccl, ucc
from engine.core.errors import CheckError
from engine.core.plan.environment import backends_in, devices_in
from engine.core.plan.plan import BackendSettings, LaunchPlan, NodeFacts, ProgramOutput
from engine.core.plan.profile import Rejoin
from engine.gate import Permit

AUTOMATIC = ("nccl", "gloo")  # backends that `auto` tries, in this order; see decision 16

AUTO_SUMMARY = "nccl where every rank has a GPU, else gloo"


class Backend(NamedTuple):
    """One backend, from its module.

    `settings`: returns the settings of a run; raises CheckError if the backend can't run here. `asks_nodes`: whether `check` needs facts about
    nodes: each node is asked before a plan is made. `program`: what the ranks' Python runs on each node before that, for `judge`. `check`
    raises CheckError if a number of ranks can't run on a node. `judge` describes what ranks will use, from the output of `program`; empty:
    unknown; it raises CheckError if they can't run. `check_plan` raises CheckError if a plan can't run.
    """

    summary: str
    settings: Callable[[bool, Permit], BackendSettings]
    asks_nodes: bool = False
    program: str = ""
    check: Callable[[int, NodeFacts], None] = lambda ranks, facts: None
    judge: Callable[[ProgramOutput, LaunchPlan], str] = lambda output, plan: ""
    check_plan: Callable[[LaunchPlan], None] = lambda plan: None


BACKENDS = {
    "gloo": Backend(gloo.SUMMARY, gloo.settings),
    "nccl": Backend(nccl.SUMMARY, nccl.settings, asks_nodes=True, check=nccl.check),
    "mpi": Backend(mpi.SUMMARY, mpi.settings, program=mpi.PROGRAM, judge=mpi.judge, check_plan=mpi.check_plan),
    "ucc": Backend(ucc.SUMMARY, ucc.settings, program=ucc.PROGRAM, judge=ucc.judge),
}


def asks_nodes(name: str) -> bool:
    """Whether a backend needs facts about nodes before a plan is made."""
    return any(BACKENDS[backend].asks_nodes for backend in backends_in(name))


def program_of(name: str) -> str:
    """The program to run on each node before a plan is made; empty: none."""
    # A backend with a program is never combined.
    return "".join(BACKENDS[backend].program for backend in backends_in(name))


def judge(output: ProgramOutput, plan: LaunchPlan) -> str:
    """Describes what ranks will use, from the output of the program; empty: unknown. Raises CheckError if they can't run."""
    return "".join(BACKENDS[backend].judge(output, plan) for backend in backends_in(plan.backend.name))


def settings_of(name: str, rejoin: Rejoin, *, one_machine: bool, permit: Permit) -> BackendSettings:
    """The combined settings of the backends in a name. `name`, `rejoin`: `backend.name` and `backend.rejoin` of a profile. `one_machine`:
    whether all ranks are on one node. `permit`: what may start. Raises CheckError: a backend can't run here."""
    backends = backends_in(name)
    parts = [BACKENDS[backend].settings(one_machine, permit) for backend in backends]
    alone = [part for part in parts if part.device == "cpu" and part.name != "gloo"]
    if len(parts) > 1 and alone:
        fact = f"{alone[0].name} can't be combined with other backends: torch would use it for every device"
        raise CheckError(fact, hint=f'set backend.name to "{alone[0].name}", or to "cpu:gloo,cuda:nccl"')
    for device, backend in devices_in(name).items():
        if (device, backend) == ("cpu", "nccl") or (device == "cuda" and backend in ("mpi", "ucc")):
            hint = "use cpu:gloo,cuda:nccl, or name mpi or ucc without a device"
            raise CheckError(f"{backend} can't be the backend for {device} alone", hint=hint)
    first = next((part for part in parts if part.device == "cuda"), parts[0])
    env = {variable: value for part in parts for variable, value in part.env.items()}
    if rejoin == "off":
        first = replace(first, start_together='backend.rejoin is "off"', rejoins_over="")
    return replace(first, name=name, env=env)


def check_node(name: str, ranks: int, facts: NodeFacts) -> None:
    """Raises CheckError if this number of ranks can't run on that node with every backend in a name."""
    for backend in backends_in(name):
        BACKENDS[backend].check(ranks, facts)


def check_plan(plan: LaunchPlan) -> None:
    """Raises CheckError if a plan can't run."""
    for backend in backends_in(plan.backend.name):
        BACKENDS[backend].check_plan(plan)
