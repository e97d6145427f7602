"""The plan of a launch: every rank's node, command line and environment, as pure data. The app, `rankdeck plan` and the supervisor use
the same object. Only values that are unknown before an attempt (the store's port, the number of the attempt, paths of the run) are filled
in by `rank_environment`."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from engine.core.plan.batch.job import Submission
from engine.core.plan.environment import EnvWarning
from engine.core.plan.layout import LOCAL_NAMES, Place, Slots, place_ranks
from engine.core.plan.mpirun import Mpi
from engine.core.plan.profile import AUTO_PRELOAD, HealthLimits, Launch, Layout, Metrics, Profile, Rank, Transport
from engine.core.words import import_words, preload_words

LIMIT_MARGIN = 10.0  # seconds between the last step of a stop ladder and the time limit of the job


class ProgramOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a program and its exit status, negative for a signal; None: it timed out."""

    text: str
    status: int | None


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a node for planning. `torch`: its version, empty: unknown. `torch_cuda`: the CUDA version of its build, empty for a
    build without CUDA, None: unknown. `output`: printed by the backend's program, if it has one."""

    name: str
    cores: int
    gpus: int
    python: str
    torch: str = ""
    torch_cuda: str | None = None
    output: ProgramOutput | None = None


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's part of a plan: the environment of every rank, the device that ranks compute on, and the MPI that starts ranks."""

    name: str
    env: dict[str, str]
    device: Literal["cpu", "cuda"]
    mpi: Mpi | None = None
    library_path: str = ""  # folder that comes first on `LD_LIBRARY_PATH` of every rank; empty: none
    start_together: str = ""  # why its ranks can only start together; empty: one may start alone
    rejoins_over: str = ""  # the backend of an attempt after a rank has come back, if it is another one
    found: str = ""  # the MPI or library that it uses, in words
    library_links: dict[str, str] = {}
    """Shared libraries that the nodes have under another name: the name that ranks need, and the file."""
    torch: str = ""  # the oldest torch with which it works, such as `2.4`; empty: any that ranks may have

    @property
    def rejoin_words(self) -> str:
        """How a dead rank of `rankdeck.elastic` comes back, if not over the same backend; empty: over the same."""
        if self.start_together:
            return f"all ranks start again: {self.start_together}"
        return f"a dead rank comes back over {self.rejoins_over}" if self.rejoins_over else ""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of every rank."""

    kind: Literal["recipe", "script", "module"]
    target: str
    args: tuple[str, ...]
    interpreter: tuple[str, ...] | None = None
    """Words before a script that is no Python program, such as `/bin/bash`; empty: it is an executable; None: Python runs it."""
    torch: str = ""  # the oldest torch with which a recipe works; empty: any that ranks may have

    @property
    def title(self) -> str:
        return self.target if self.kind != "script" else self.target.rsplit("/", 1)[-1]


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings for connections to nodes: options of `ssh`, shell lines that run before the agent, and the job whose steps
    agents are, as Slurm numbers it."""

    ssh_options: tuple[str, ...] = ()
    setup: str = ""
    slurm_job: str = ""


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the plan and the ranks that it runs."""

    name: str
    transport: Transport
    ranks: tuple[int, ...]
    cpus: tuple[str, ...] = ()  # the CPUs that each of its ranks is bound to, such as `0-3,8`, if known by now


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a run in a sweep. `sweep`: its name. `values`: by argument or key of the profile, as text to be shown. `number`: from 1 to `runs`.
    `seed`: the seed with which the points were drawn; None: the sweep runs its whole grid."""

    sweep: str
    values: dict[str, str]
    number: int
    runs: int
    seed: int | None = None

    @property
    def words(self) -> str:
        """The values in one line: `lr 0.001, layout.ranks_per_node 2`."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch. `launch`, `layout`, `rank`, `metrics`, `health`: sections of the profile, with the Python, folder and `warm` that were
    found for them. `env`: the profile's variables for every rank; `env_defaults`: variables that apply unless the node's own environment
    sets them; `rank_environment` adds those that differ between ranks."""

    name: str
    description: str
    backend: BackendSettings
    backend_note: str = ""  # why this backend was chosen, if the profile leaves the choice open
    backend_is_auto: bool = False  # whether rankdeck chose the backend, because the profile says `auto`
    fallback: tuple[BackendSettings, ...] = ()  # to use in this order, if ranks can't set up their process group
    timeout: float
    nodes: tuple[PlannedNode, ...]
    places: tuple[Place, ...]
    program: Program
    launch: Launch
    layout: Layout
    rank: Rank
    metrics: Metrics
    health: HealthLimits
    slurm_job: str = ""  # the number of the Slurm job that has the nodes; empty: none
    env: dict[str, str]
    env_defaults: dict[str, str]
    preload: tuple[str, ...] = ()
    """Modules that the template imports besides torch, before it forks ranks: with `launch.preload = "auto"`, those of the last run."""
    slow_imports: tuple[tuple[str, float], ...] = ()  # modules worth adding to `preload`, and their seconds in a rank
    warnings: tuple[EnvWarning, ...] = ()  # They do not change the launch.
    message: str = ""  # what the administrators of this machine tell all users
    outer_python: str = ""  # the Python of agents, if ranks have another in `launch.wrap`; empty: they share one
    submission: Submission | None = None
    """The job that runs it. Until the job starts, its nodes are not known, and the plan calls them node1, node2 and so on."""
    spare_nodes: int = 0  # nodes of the job besides `nodes`. The run goes on there if one of `nodes` is lost.
    spare_names: tuple[str, ...] = ()  # spare nodes where dead ranks can rejoin: they need no copy of the code
    is_looked_up: bool = True
    """False: nothing may start for the profile, so neither programs nor nodes were asked what the plan depends on."""
    linger: float = 0.0  # seconds that a standby stays after the run; 0: none does
    swept: Swept | None = None  # None: the run belongs to no sweep

    @property
    def stop_patience(self) -> float:
        """Seconds for which the stop ladder waits while ranks save; a job with `warn` ends before them."""
        launch, job = self.launch, self.layout.job
        if job is None or not job.warn:
            return launch.stop_patience
        left = job.warn - sum(seconds for _, seconds in launch.stop_ladder) - LIMIT_MARGIN
        return min(launch.stop_patience, max(0.0, left))

    @property
    def reach(self) -> Reach:
        return Reach(ssh_options=self.layout.ssh_options, setup=self.launch.setup, slurm_job=self.slurm_job)

    @property
    def python(self) -> str:
        return self.launch.python or ""

    @property
    def workdir(self) -> str:
        return self.launch.workdir

    @property
    def world_size(self) -> int:
        return len(self.places)

    @property
    def offered_preload(self) -> tuple[str, ...]:
        """The value of `launch.preload` with which no rank imports slowly."""
        return (*self.preload, *(name for name, _ in self.slow_imports))

    @property
    def rank_python(self) -> tuple[str, ...]:
        """The words that start the Python of ranks."""
        return (*self.launch.wrap, self.python)

    @property
    def shown_python(self) -> str:
        """The Python of ranks, for people; empty: they run another program."""
        return self.python if self.program.interpreter is None else ""

    @property
    def node_python(self) -> str:
        """The Python of agents, which needs no torch."""
        return self.outer_python or self.python


def slow_import_words(plan: LaunchPlan) -> str:
    """The modules that ranks imported slowly in the script's last run, and how to share them; empty: none."""
    if not plan.slow_imports:
        return ""
    return f"the last run imported {import_words(plan.slow_imports)}; {preload_words(plan.offered_preload)}"


def build_plan(
    profile: Profile,
    slots: tuple[Slots, ...],
    facts: tuple[NodeFacts, ...],
    backend: BackendSettings,
    *,
    workdir: str,
    slurm_job: str = "",
) -> LaunchPlan:
    """The plan of a profile. `slots`: the nodes of its layout, from `parse_nodes`. `facts`: one for each of these nodes, in the same order.
    `workdir`: absolute path in which ranks start."""
    counts = tuple(
        (slot.node, slot.ranks or max(1, fact.gpus if backend.device == "cuda" else fact.cores))
        for slot, fact in zip(slots, facts, strict=True)
    )
    places = place_ranks(counts, profile.layout.order)
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **backend.env}
    if max(count for _, count in counts) > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    recipe, launch = profile.recipe, profile.launch
    node_python = "python3" if launch.setup else facts[0].python
    python = launch.python or ("python3" if launch.wrap else node_python)
    warm = launch.warm and not profile.rank.wrap and not launch.wrap
    kind: Literal["recipe", "script", "module"] = "recipe" if recipe.name else "script" if recipe.script else "module"
    return LaunchPlan(
        name=profile.name,
        description=profile.description,
        backend=backend,
        timeout=profile.backend.timeout,
        nodes=_planned_nodes(profile.layout.transport, [node for node, _ in counts], places),
        places=places,
        program=Program(kind=kind, target=recipe.name or recipe.script or recipe.module or "", args=recipe.args),
        launch=replace(launch, python=python, workdir=workdir, warm=warm),
        layout=profile.layout,
        rank=profile.rank,
        metrics=profile.metrics,
        health=profile.health,
        slurm_job=slurm_job,
        outer_python=node_python if launch.wrap else "",
        env={**profile.backend.env, **profile.env},
        env_defaults=defaults,
        preload=() if launch.preload == AUTO_PRELOAD else launch.preload,
    )


def _planned_nodes(
    transport: Transport | None, names: Sequence[str], places: Sequence[Place]
) -> tuple[PlannedNode, ...]:
    """The nodes in their order, each with its ranks."""
    return tuple(
        PlannedNode(
            name=name,
            transport=transport or ("local" if name in LOCAL_NAMES else "ssh"),
            ranks=tuple(place.rank for place in places if place.group_rank == group),
        )
        for group, name in enumerate(names)
    )


def with_backend(plan: LaunchPlan, backend: str) -> LaunchPlan:
    """The plan with another of its backends."""
    if backend in ("", plan.backend.name):
        return plan
    settings = next(one for one in plan.fallback if one.name == backend)
    kept = {name: value for name, value in plan.env_defaults.items() if name not in plan.backend.env}
    return replace(plan, backend=settings, env_defaults={**kept, **settings.env})


def with_nodes(plan: LaunchPlan, names: Sequence[str]) -> LaunchPlan:
    """The plan with nodes that spare ones have replaced. `names`: names of all nodes, in the plan's order."""
    if tuple(names) == tuple(node.name for node in plan.nodes):
        return plan
    nodes = tuple(replace(node, name=name) for node, name in zip(plan.nodes, names, strict=True))
    return replace(plan, nodes=nodes, places=tuple(replace(one, node=names[one.group_rank]) for one in plan.places))


def store_address(plan: LaunchPlan) -> str:
    """The address of the store, in words: with several nodes it is found at launch."""
    return "127.0.0.1" if len(plan.nodes) == 1 else "an address that all nodes reach"
