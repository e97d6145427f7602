"""Preflight: what is looked at on every node before a launch, and what is said about it.

The probe on a node (`engine.node.probe`) gives answers, which have their types here; `engine.core.node_findings` makes findings
of one node's, `engine.core.cluster_findings` of all of them side by side. A later finding about the same node and check takes
the place of an earlier one: some things show only beside other nodes.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.core.plan.plan import LaunchPlan

Check = Literal[
    "ssh",
    "python",
    "torch",
    "backend",
    "env",
    "gpus",
    "workdir",
    "script",
    "disk",
    "clock",
    "head",
    "interface",
    "limits",
    "leftovers",
]
"""What is looked at, in the order in which it is shown: what comes first is needed for what comes after."""

CHECKS: tuple[Check, ...] = typing.get_args(Check)

CHECK_WORDS: dict[Check, str] = {
    "ssh": "the node can be reached",
    "python": "launch.python starts there, and is alike on all nodes",
    "torch": "that Python has torch, the same on all nodes; the full check imports it",
    "backend": "that torch can do backend.name",
    "env": "the variables of the profile exist, and do what was meant",
    "gpus": "there is a free GPU for each rank, where ranks compute on GPUs",
    "workdir": "launch.workdir is there, can be entered and read",
    "script": "recipe.script is there, with the same content on all nodes",
    "disk": "there is room in the temporary folder, the working directory and shared memory",
    "clock": "the clock is that of this machine",
    "head": "the first node, which hosts the store, can be reached from there",
    "interface": "the network interface that ranks will use is there",
    "limits": "open files, locked memory and memory suffice for the ranks",
    "leftovers": "no process of an earlier run is left there",
}
"""What each check comes to, for the documentation and the app."""

State = Literal["ok", "warn", "fail", "skip"]
"""`warn`: a launch may well work. `fail`: it would not, or not for long. `skip`: not looked at, the text says why."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one check on one node. `hint`: the next step, where there is one to take."""

    node: str
    check: Check
    state: State
    text: str
    hint: str = msgspec.field(name="advice", default="")


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A check has begun: the nodes that will have findings, in order."""

    nodes: tuple[str, ...]


def job_question(plan: LaunchPlan) -> dict[str, object]:
    """What the probe is told of a plan when it is asked for `Job`, `Torch` or `ProgramOutput`."""
    program = plan.program
    return {
        "python": plan.python,
        "workdir": plan.workdir,
        "script": program.target if program.kind == "script" else "",
        "module": program.target if program.kind == "module" else "",
        "env": plan.env,
        "env_defaults": plan.env_defaults,
        "library_path": plan.backend.library_path,
    }


def ok(node: str, check: Check, text: str) -> Finding:
    """All is well."""
    return Finding(node=node, check=check, state="ok", text=text)


def skip(node: str, check: Check, text: str) -> Finding:
    """It was not looked at."""
    return Finding(node=node, check=check, state="skip", text=text)


def warn(node: str, check: Check, text: str, hint: str) -> Finding:
    """It may go well."""
    return Finding(node=node, check=check, state="warn", text=text, hint=hint)


def fail(node: str, check: Check, text: str, hint: str) -> Finding:
    """It can't go well."""
    return Finding(node=node, check=check, state="fail", text=text, hint=hint)


class Grid:
    """Findings as they come, by node and check.

    Args:
        nodes: every node that is checked, in order.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._found: dict[tuple[str, Check], Finding] = {}

    def take(self, finding: Finding) -> None:
        """Takes a finding in."""
        self._found[finding.node, finding.check] = finding

    def at(self, node: str, check: Check) -> Finding | None:
        """What is known of a check on a node; None as long as nothing is."""
        return self._found.get((node, check))

    def of(self, node: str) -> tuple[Finding, ...]:
        """What is known of a node, in the order of the checks."""
        return tuple(found for check in CHECKS if (found := self.at(node, check)))

    def is_complete(self, node: str) -> bool:
        """Whether every check of a node has a finding."""
        return all((node, check) in self._found for check in CHECKS)

    def in_state(self, *states: State) -> tuple[Finding, ...]:
        """The findings in these states, node by node."""
        return tuple(found for node in self.nodes for found in self.of(node) if found.state in states)

    def all(self) -> tuple[Finding, ...]:
        """Every finding, node by node."""
        return tuple(found for node in self.nodes for found in self.of(node))


# --- what a probe answers ----------------------------------------------------------------------------------------------


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """What time it is on a node, in seconds since the epoch."""

    time: float


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one run of this user. `owned`: an agent looks after them. `run`: its id, where one of them knows it."""

    mark: str
    run: str
    pids: tuple[int, ...]
    owned: bool


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has. Sizes in bytes; None: there is no limit."""

    python: str
    executable: str
    architecture: str
    cores: int
    gpus: int
    open_files: int | None
    locked_memory: int | None
    memory: int | None
    has_infiniband: bool
    mpirun: str
    interfaces: tuple[tuple[str, str], ...]
    leftovers: tuple[Leftover, ...]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `trouble`: why it can't be read."""

    size: int
    sha256: str
    trouble: str


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Room in a folder: free bytes and free files, None where they are not known. `trouble`: why nothing can be written there."""

    what: str
    path: str
    bytes: int | None
    files: int | None
    trouble: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank would find.

    `workdir`: why it could not start in that folder. `start`: why its Python could not start. `torch_cuda`: the CUDA that torch
    was built for, empty for a build without; None: not known.
    """

    workdir: str
    workdir_writable: bool
    script: Script | None
    module: bool | None
    torch: str
    torch_cuda: str | None
    has_torch: bool
    mpi4py: str
    start: str
    spaces: tuple[Space, ...]
    shared_memory: int | None


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an imported torch says of itself. `trouble`: what one of its parts raised."""

    version: str
    cuda: str
    gpus: int = 0
    distributed: bool = False
    backends: tuple[str, ...] = ()
    nccl: str = ""
    trouble: str = ""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, with its memory in bytes."""

    name: str
    total: int
    free: int


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """What an import of torch came to: facts, or how it failed."""

    facts: TorchFacts | None
    trouble: str
    timed_out: bool
    devices: tuple[Device, ...]


class ProbeListener(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node listens: a port on all of these addresses."""

    port: int
    addresses: tuple[str, ...]


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """How another node's listener was reached: `(address, own interface)`, and `(address, reason)` where it was not."""

    reached: tuple[tuple[str, str], ...]
    missed: tuple[tuple[str, str], ...]
