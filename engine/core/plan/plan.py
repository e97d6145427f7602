"""What a profile comes to on real nodes: every rank's node, argv and environment, as pure data.

The preview, `rankdeck plan` and the runner use the same object, so what is shown is what runs. Only what can't be known
before an attempt (the store's port, the attempt's number, paths of the run) is filled in by `rank_environment`.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec.structs import replace

from engine.core.plan.environment import EnvWarning
from engine.core.plan.layout import LOCAL_NAMES, Place, Slots, place_ranks
from engine.core.plan.mpirun import Mpi
from engine.core.plan.profile import Profile

SECRET_NAME = re.compile(
    r"^(?!(?:OLD)?PWD$).*?"  # the shell's own variables
    r"(?:TOKEN|KEY|SECRET|(?<!BY)(?<!COM)PASS|PWD|AUTH(?!ORS?(?:_|$))|CREDENTIAL|COOKIE)",
    re.IGNORECASE,
)
"""Names of environment variables whose values are never shown, put into argv, or written to a journal."""

SECRET_VALUE = re.compile(
    r"^(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9_+=]{32,}$"  # random letters and digits
    r"|^[0-9a-f]{32,}$"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|npm_|pypi-|AKIA|ASIA|AIza|eyJ[A-Za-z0-9_-]{8,}\.)[A-Za-z0-9_-]{8,}"
    r"|://[^/\s:@]*:[^/\s@]+@"  # a URL with a password
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Values that look like tokens, passwords or private keys, whatever the name of their variable."""

TRACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch's flight recorder writes to, by the name that torch 2.8 and newer have, and the older one."""

HIDDEN = "•••"
"""Stands for a value that must not be shown."""


class ProgramOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a program wrote, and the status that it ended with, negative for a signal. None: it had not ended in time."""

    text: str
    status: int | None


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a node before planning. `torch`: its version, where that was asked; `torch_cuda`: the CUDA that it was
    built for, empty for a build without, None where that is not known. `output`: of the backend's program, where it has one."""

    name: str
    cores: int
    gpus: int
    python: str
    torch: str = ""
    torch_cuda: str | None = None
    output: ProgramOutput | None = None


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend module adds to a plan: the environment of every rank, the device that ranks compute on, and the MPI whose
    `mpirun` starts them, where one does."""

    name: str
    env: dict[str, str]
    device: Literal["cpu", "cuda"]
    mpi: Mpi | None = None
    library_path: str = ""
    """Folder that comes first on `LD_LIBRARY_PATH` of every rank; empty: none."""
    start_together: str = msgspec.field(name="one_fate", default="")
    """Why its ranks can only start together; empty where one may start alone."""
    found: str = ""
    """What it runs with, in words: which MPI, which library."""
    library_links: dict[str, str] = {}
    """Libraries that ranks ask for by another name than they have on the nodes: the name, and the file."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank runs."""

    kind: Literal["recipe", "script", "module"]
    target: str
    args: tuple[str, ...]

    @property
    def title(self) -> str:
        """A short name for tables."""
        return self.target if self.kind != "script" else self.target.rsplit("/", 1)[-1]


Transport = Literal["local", "ssh"]
"""How the agent of a node is reached."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of every connection to a node: options of `ssh`, and shell lines that come before the agent's Python."""

    ssh_options: tuple[str, ...] = ()
    setup: str = ""


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the plan and the ranks that it runs."""

    name: str
    transport: Transport
    ranks: tuple[int, ...]


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when a rank fails."""

    on_failure: Literal["hold", "stop", "restart"]
    max_restarts: int


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, decided.

    `env` is what the profile says, for every rank; `env_defaults` holds only where the node's own environment has no such
    variable; `rank_environment` adds what differs from rank to rank.
    """

    name: str
    description: str
    backend: BackendSettings
    backend_note: str = ""
    """Why it is that backend and no other, where the profile did not decide it alone."""
    fallback: tuple[BackendSettings, ...] = ()
    """Backends that take over, one after another, when ranks can't set their process group up."""
    timeout: float
    nodes: tuple[PlannedNode, ...]
    places: tuple[Place, ...]
    reach: Reach
    program: Program
    python: str
    workdir: str
    sync: Literal["none", "rsync"]
    env: dict[str, str]
    env_defaults: dict[str, str]
    warm: bool
    policy: FailurePolicy
    on_disconnect: Literal["keep", "stop"]
    lease: float
    stop_ladder: tuple[tuple[str, float], ...]
    metric_patterns: tuple[str, ...]
    warnings: tuple[EnvWarning, ...] = ()
    """What will not do what was meant. It changes nothing of what runs."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return len(self.places)


class AttemptPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank of one attempt keeps its files, on its own node. `traces`: what names of NCCL's recorded collectives begin
    with; torch adds the rank."""

    library: str
    error: str
    metrics: str
    stacks: str
    handover: str
    traces: str
    checkpoints: str


def build_plan(
    profile: Profile, slots: tuple[Slots, ...], facts: tuple[NodeFacts, ...], backend: BackendSettings, *, workdir: str
) -> LaunchPlan:
    """Decides a launch.

    Args:
        profile: what the user asked for.
        slots: the nodes of its layout, from `parse_nodes`.
        facts: what each of these nodes has, in the same order.
        backend: what the chosen backend adds.
        workdir: absolute path that the ranks start in.

    Returns:
        The plan; it holds no reference to the clock, the process or the machine that made it.
    """
    counts = tuple(
        (slot.node, slot.ranks or _automatic_ranks(fact, backend)) for slot, fact in zip(slots, facts, strict=True)
    )
    places = place_ranks(counts, profile.layout.order)
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **backend.env}
    if max(count for _, count in counts) > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    recipe = profile.recipe
    kind: Literal["recipe", "script", "module"] = "recipe" if recipe.name else "script" if recipe.script else "module"
    return LaunchPlan(
        name=profile.name,
        description=profile.description,
        backend=backend,
        timeout=profile.backend.timeout,
        nodes=tuple(
            PlannedNode(
                name=node,
                transport=_transport(profile.layout.transport, node),
                ranks=tuple(place.rank for place in places if place.group_rank == group),
            )
            for group, (node, _) in enumerate(counts)
        ),
        places=places,
        reach=Reach(ssh_options=profile.layout.ssh_options, setup=profile.launch.setup),
        program=Program(kind=kind, target=recipe.name or recipe.script or recipe.module or "", args=recipe.args),
        python=profile.launch.python or ("python3" if profile.launch.setup else facts[0].python),
        workdir=workdir,
        sync=profile.launch.sync,
        env={**profile.backend.env, **profile.env},
        env_defaults=defaults,
        warm=profile.launch.warm,
        policy=FailurePolicy(on_failure=profile.launch.on_failure, max_restarts=profile.launch.max_restarts),
        on_disconnect=profile.launch.on_disconnect,
        lease=profile.launch.lease,
        stop_ladder=profile.launch.stop_ladder,
        metric_patterns=profile.metrics.patterns,
    )


def with_backend(plan: LaunchPlan, backend: str) -> LaunchPlan:
    """The same plan with another of its backends.

    Args:
        plan: the launch.
        backend: name of the one that it has, or of one of its fallback.
    """
    if backend in ("", plan.backend.name):
        return plan
    settings = next(one for one in plan.fallback if one.name == backend)
    kept = {name: value for name, value in plan.env_defaults.items() if name not in plan.backend.env}
    return replace(plan, backend=settings, env_defaults={**kept, **settings.env})


def store_address(plan: LaunchPlan) -> str:
    """Where ranks find the store, in words: on several nodes the address is only known once they have tried each other's."""
    return "127.0.0.1" if len(plan.nodes) == 1 else "an address that all nodes reach"


def _transport(wanted: Transport | None, node: str) -> Transport:
    """This machine needs no ssh, unless somebody asks for it."""
    return wanted or ("local" if node in LOCAL_NAMES else "ssh")


def _automatic_ranks(fact: NodeFacts, backend: BackendSettings) -> int:
    """GPUs for a backend that computes on them, else cores, as torchrun's `auto` counts."""
    return max(1, fact.gpus if backend.device == "cuda" else fact.cores)


def rank_argv(plan: LaunchPlan, library: str) -> tuple[str, ...]:
    """The command line of every rank.

    Args:
        plan: the launch.
        library: the folder on the node that holds the `rankdeck` package; a recipe is a file in there.
    """
    program = plan.program
    match program.kind:
        case "recipe":
            target: tuple[str, ...] = (f"{library}/rankdeck/recipes/{program.target}.py",)
        case "script":
            target = (program.target,)
        case "module":
            target = ("-m", program.target)
    return (plan.python, "-u", *target, *program.args)


def rank_environment(
    plan: LaunchPlan,
    place: Place,
    *,
    run: str,
    attempt: int,
    address: str,
    port: int,
    paths: AttemptPaths,
    generation: int = 0,
) -> dict[str, str]:
    """What a rank finds in its environment besides what its node already has.

    The names and values are torchrun's contract (torch 2.13, `LocalElasticAgent._start_workers`), so that a script which
    runs under torchrun runs here unchanged. `RANKDECK_*` is ours.

    Args:
        plan: the launch.
        place: the rank.
        run: id of the run.
        attempt: counted from 0, torchrun's restart count.
        address: of the node that hosts this attempt's store, as the others reach it.
        port: of the store, which is hosted outside the ranks.
        paths: files of this rank.
        generation: that it is started for; above 0 where it takes a dead rank's place.
    """
    traces = dict.fromkeys(TRACES, paths.traces) if "nccl" in plan.backend.name else {}
    return {
        **traces,
        **plan.env,
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.group_rank),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.policy.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": paths.error,
        "RANKDECK_RUN": run,
        "RANKDECK_GENERATION": str(generation),
        "RANKDECK_BACKEND": plan.backend.name,
        "RANKDECK_TIMEOUT": f"{plan.timeout:g}",
        "RANKDECK_METRICS": paths.metrics,
        "RANKDECK_STACKS": paths.stacks,
        "RANKDECK_HANDOVER": paths.handover,
        "RANKDECK_CHECKPOINTS": paths.checkpoints,
    }


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable must not be shown."""
    return bool(SECRET_NAME.search(name) or SECRET_VALUE.search(value))


def shown_environment(env: dict[str, str]) -> dict[str, str]:
    """The same variables, with secrets hidden."""
    return {name: HIDDEN if is_secret(name, value) else value for name, value in env.items()}


_SHELL_WORD = re.compile(r"""(?:[^\s'";&|]|'[^']*'|"[^"]*")+""")


def shown_shell(text: str) -> str:
    """Shell lines with the secrets in them hidden: assignments to secret names, and words that look like tokens.

    Args:
        text: such as `launch.setup`.
    """

    def shown(match: re.Match[str]) -> str:
        name, equals, value = match[0].partition("=")
        if equals and is_secret(name.lstrip("-"), value.strip("'\"")):
            return f"{name}={HIDDEN}"
        return HIDDEN if SECRET_VALUE.search(match[0].strip("'\"")) else match[0]

    return _SHELL_WORD.sub(shown, text)
