"""Checks of nodes before a launch: their names, their findings, and the answers of the probe. The probe on a node (`engine.node.probe`)
gives the answers. `node_findings` and `job_findings` turn them into findings about one node, `cluster_findings` compares all nodes. A
later finding about the same node and check replaces an earlier one."""

import typing
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.core.plan.plan import LaunchPlan, PlannedNode
from engine.core.tables import read_words
from engine.core.words import count

Check = Literal["ssh", "python", "torch", "backend", "env", "gpus", "cores", "workdir", "script", "disk", "clock", "head", "interface",
                "limits", "login", "leftovers"]  # fmt: skip
"""In the order in which checks are shown; later ones depend on earlier ones."""

CHECKS: tuple[Check, ...] = typing.get_args(Check)


def check_words() -> dict[str, str]:
    """The condition that each check tests, for the documentation and the app."""
    return read_words(__package__, "checks")


State = Literal["ok", "warn", "fail", "skip"]
"""`warn`: a launch may work. `fail`: ranks will fail. `skip`: not checked, the text has the reason."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check on one node. `hint`: the next step; empty: none."""

    node: str
    check: Check
    state: State
    text: str
    hint: str = ""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A check has begun: the nodes that will have findings, in order."""

    nodes: tuple[str, ...]


def machine_question(plan: LaunchPlan, node: PlannedNode) -> dict[str, object]:
    """The parameters of a plan for the question whose answer is `Machine`."""
    return {"bind": plan.layout.bind, "count": len(node.ranks), "device": plan.backend.device, "env": plan.env}


def job_question(plan: LaunchPlan) -> dict[str, object]:
    """The parameters of a plan for questions whose answer is `JobFacts`, `Torch` or `ProgramOutput`."""
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
    """A finding without a problem."""
    return Finding(node=node, check=check, state="ok", text=text)


def skip(node: str, check: Check, text: str) -> Finding:
    """A finding about a check that was not made."""
    return Finding(node=node, check=check, state="skip", text=text)


def warn(node: str, check: Check, text: str, hint: str) -> Finding:
    """A finding that ranks may fail."""
    return Finding(node=node, check=check, state="warn", text=text, hint=hint)


def fail(node: str, check: Check, text: str, hint: str) -> Finding:
    """A finding that ranks will fail."""
    return Finding(node=node, check=check, state="fail", text=text, hint=hint)


def problem_words(findings: Sequence[Finding]) -> str:
    """How many failures and warnings there are; empty: none."""
    states = [finding.state for finding in findings]
    counts = [(states.count("fail"), "failure"), (states.count("warn"), "warning")]
    return ", ".join(count(number, noun) for number, noun in counts if number)


class Grid:
    """Findings by node, in order, and check, while they arrive."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._found: dict[tuple[str, Check], Finding] = {}

    def take(self, finding: Finding) -> None:
        """Adds a finding, or replaces an earlier one."""
        self._found[finding.node, finding.check] = finding

    def at(self, node: str, check: Check) -> Finding | None:
        return self._found.get((node, check))

    def of(self, node: str) -> tuple[Finding, ...]:
        return tuple(found for check in CHECKS if (found := self.at(node, check)))

    def is_complete(self, node: str) -> bool:
        """Whether every check of a node has a finding."""
        return all((node, check) in self._found for check in CHECKS)

    def in_state(self, *states: State) -> tuple[Finding, ...]:
        """The findings in these states, node by node."""
        return tuple(found for node in self.nodes for found in self.of(node) if found.state in states)

    def all(self) -> tuple[Finding, ...]:
        return tuple(found for node in self.nodes for found in self.of(node))


# --- answers of the probe ----------------------------------------------------------------------------------------------


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The time on a node, in seconds since the epoch."""

    time: float


Login = Literal["", "session", "user"]
"""The system ends a node's processes with their login session, or with the user's last session; empty: neither."""


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one run of this user. `owned`: they have an agent. `run`: the run's id; empty: unknown."""

    mark: str
    run: str
    pids: tuple[int, ...]
    owned: bool


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a node. Sizes in bytes; None: no limit."""

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
    processes: int | None = None  # how many more processes and threads the user may start there
    ends_with: Login = ""
    cpus: tuple[str, ...] = ()  # the CPUs of each rank there, if ranks are bound
    cpus_trouble: str = ""  # why they can't be bound
    cpu_limit: float | None = None  # how many CPUs control groups allow at the same time
    process_limits: dict[str, int] = {}  # of each process; see `engine.node.limits.process_limits`


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `trouble`: why it can't be read."""

    size: int
    sha256: str
    trouble: str


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Free space of a folder: bytes and files, None: unknown. `trouble`: why nothing can be written there. `seconds`: how long a small
    file took to reach the disk; None: not tried."""

    what: str
    path: str
    bytes: int | None
    files: int | None
    trouble: str
    seconds: float | None = None


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a node, as a rank would find them. `workdir`: why a rank could not start in that folder. `start`: why Python could not
    start. `torch_cuda`: the CUDA version of torch's build, empty for a build without CUDA; None: unknown."""

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
    """Properties of an imported torch. `trouble`: an exception that it raised."""

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
    """The result of importing torch: facts, or why it failed."""

    facts: TorchFacts | None
    trouble: str
    timed_out: bool
    devices: tuple[Device, ...]


class ProbeListener(msgspec.Struct, frozen=True, kw_only=True):
    """A port on which a node listens, and its addresses."""

    port: int
    addresses: tuple[str, ...]


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of another node: `(address, own interface)` of those that were reached, `(address, reason)` of the others."""

    reached: tuple[tuple[str, str], ...]
    missed: tuple[tuple[str, str], ...]
