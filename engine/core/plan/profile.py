"""Schema 1 of a profile. The structs are the only list of keys: checks, hints with the nearest key and the editor read it."""

import functools
import operator
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

SCHEMA = 1  # The version that is read and written. Files of a newer version are refused.
AUTO_PRELOAD: Final = "auto"  # value of `launch.preload`: the modules that the last run of the script used
MAX_LINGER = 86_400  # most seconds that a template may stay after a run
UNDERSTOOD: Final = "auto"  # a step of `launch.stop_ladder`: SIGTERM if the program has a handler for it, else SIGINT


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of a profile."""


Rejoin = Literal["auto", "gloo", "off"]
"""Over which backend a dead rank comes back; `off`: all ranks start again."""


class Backend(Section, frozen=True, kw_only=True):
    """`[backend]`: the process group and its settings."""

    name: str = "gloo"
    fallback: tuple[str, ...] = ()
    timeout: float = 600.0
    rejoin: Rejoin = "auto"
    env: dict[str, str] = {}


Transport = Literal["local", "ssh", "slurm", "pbs"]  # how the agent of a node is reached: see `engine.launchers`
Bind = Literal["none", "core", "numa", "socket"]  # the unit of CPUs that each rank is bound to

BIND_WORDS: dict[Bind, str] = {
    "none": "ranks may use all CPUs",
    "core": "each rank has cores of its own",
    "numa": "each rank has the CPUs of its NUMA node, that of its GPU if it has one",
    "socket": "each rank has the CPUs of its socket, that of its GPU if it has one",
}
"""The meaning of each value of `Bind`."""


class SlurmJob(Section, frozen=True, kw_only=True):
    """`[layout.slurm]`: a job that rankdeck submits. Empty: as the site sets it. `ranks_per_node` overrides that of `[layout]`. `spares`:
    nodes that the job has besides, in place of those that fail. `warn`: seconds before the job's time limit at which its run is stopped;
    0: Slurm ends it. `on_limit`: whether it goes on in another job. `on_preempt`, `on_node_fail`: whether Slurm puts the job back into the queue."""

    nodes: int = 1
    ranks_per_node: int | None = None
    partition: str = ""
    time: str = ""
    gres: str = ""
    account: str = ""
    options: tuple[str, ...] = ()
    spares: int = 0
    warn: int = 0
    on_limit: Literal["stop", "requeue"] = "stop"
    on_preempt: Literal["stop", "requeue"] = "stop"
    on_node_fail: Literal["stop", "requeue"] = "stop"

    @property
    def words(self) -> str:
        """The job in a few words, for lists: `slurm 4 nodes, gpu`."""
        return f"slurm {self.nodes} {'node' if self.nodes == 1 else 'nodes'}{self.partition and f', {self.partition}'}"


class PbsJob(Section, frozen=True, kw_only=True):
    """`[layout.pbs]`: a job of PBS that rankdeck submits. `ncpus` and `ngpus`: CPUs and GPUs of each node; None: a CPU for each rank.
    `warn` and `on_limit`: see `SlurmJob`."""

    nodes: int = 1
    ranks_per_node: int | None = None
    queue: str = ""
    walltime: str = ""
    ncpus: int | None = None
    ngpus: int = 0
    account: str = ""
    options: tuple[str, ...] = ()
    warn: int = 0
    on_limit: Literal["stop", "requeue"] = "stop"

    @property
    def words(self) -> str:
        """The job in a few words, for lists: `pbs 4 nodes, gpuq`."""
        return f"pbs {self.nodes} {'node' if self.nodes == 1 else 'nodes'}{self.queue and f', {self.queue}'}"


class Layout(Section, frozen=True, kw_only=True):
    """`[layout]`: nodes and ranks. At most one of `nodes`, `hostfile`, `slurm` and `pbs`."""

    nodes: str | tuple[str, ...] = "localhost"
    hostfile: str | None = None
    slurm: int | str | SlurmJob | None = None
    pbs: Literal["current"] | PbsJob | None = None
    ranks_per_node: int | Literal["auto"] = "auto"
    transport: Transport | None = None
    order: Literal["block", "cyclic"] = "block"
    bind: Bind = "none"
    ssh_options: tuple[str, ...] = ()

    @property
    def system(self) -> Literal["slurm", "pbs"] | None:
        """The batch system to which rankdeck submits a job; None: it submits none."""
        return "slurm" if isinstance(self.slurm, SlurmJob) else "pbs" if isinstance(self.pbs, PbsJob) else None

    @property
    def job(self) -> SlurmJob | PbsJob | None:
        """The job that rankdeck submits; None: it submits none."""
        return getattr(self, self.system) if self.system is not None else None

    @property
    def words(self) -> str:
        """The nodes in a few words, for lists: `gpu[01-04]:8`, `hosts.txt`, `slurm current`."""
        if self.hostfile is not None:
            return self.hostfile
        if self.job is not None:
            return self.job.words
        for name in ("slurm", "pbs"):
            if (job := getattr(self, name)) is not None:
                return f"{name} {job}"
        nodes = self.nodes if isinstance(self.nodes, str) else ",".join(self.nodes)
        return nodes if ":" in nodes else f"{nodes}:{self.ranks_per_node}"


class Recipe(Section, frozen=True, kw_only=True):
    """`[recipe]`: the program of every rank. Exactly one of `name`, `script` and `module`."""

    name: str | None = None
    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()


class Launch(Section, frozen=True, kw_only=True):
    """`[launch]`: how ranks start, and what happens when one ends. `wrap`: words before everything that needs torch, such as a container's."""

    python: str | None = None
    setup: str = ""
    wrap: tuple[str, ...] = ()
    workdir: str = "."
    sync: Literal["none", "rsync"] = "none"
    warm: bool = True
    prewarm: bool = True
    preload: tuple[str, ...] | Literal["auto"] = ()
    linger: float | Literal["off"] | None = None
    environment: Literal["torchrun", "plain"] = "torchrun"
    on_failure: Literal["hold", "stop", "restart"] = "hold"
    hold_for: float | None = None
    on_nan: Literal["ignore", "hold", "stop"] = "ignore"
    max_restarts: int = 3
    restart_when: Literal["may_heal", "always"] = "may_heal"
    on_disconnect: Literal["keep", "stop"] = "keep"
    lease: float = 600.0
    stop_ladder: tuple[tuple[str, float], ...] = ((UNDERSTOOD, 10.0), ("SIGTERM", 10.0), ("SIGKILL", 5.0))
    stop_patience: float = 300.0
    on_torn: Literal["say", "set-aside"] = "say"

    @property
    def failure_words(self) -> str:
        """`on_failure` with its limit: `hold for 900 s`."""
        if self.on_failure == "restart":
            return f"restart, at most {self.max_restarts} times"
        return f"hold for {self.hold_for:g} s" if self.on_failure == "hold" and self.hold_for else self.on_failure

    @property
    def ladder_words(self) -> str:
        """`stop_ladder` on one line."""
        steps = ", then ".join(f"{name} for {wait:g} s" for name, wait in self.stop_ladder)
        return steps.replace(f"{UNDERSTOOD} ", "SIGTERM if it is handled, else SIGINT, ")


class Rank(Section, frozen=True, kw_only=True):
    """`[rank]`: how each rank starts. `wrap`: words before its command line, such as a profiler; those of `launch.wrap` come before them."""

    wrap: tuple[str, ...] = ()


class Metrics(Section, frozen=True, kw_only=True):
    """`[metrics]`: what the ranks' output means, where rankdeck does not find it by itself."""

    patterns: tuple[str, ...] = ()
    loss: str = ""
    step: str = ""
    ignore: tuple[str, ...] = ()
    stop_when: str = ""
    best: Literal["min", "max"] | None = None  # which value of a metric is the best whose name does not say it


class HealthLimits(Section, frozen=True, kw_only=True):
    """`[health]`: when a rank or a curve is reported; 0 switches a report off."""

    stalled: float = 10.0  # after how many usual intervals without a step a rank is stalled
    least: float = 30.0  # seconds without a new step, at least
    slow: float = 1.5  # times the usual interval of the other ranks
    spike: float = 8.0  # times the usual deviation of the loss above its level
    drop: float = 0.5  # share of the usual throughput


class Profile(Section, frozen=True, kw_only=True):
    schema: Literal[1]
    name: str
    description: str = ""
    backend: Backend = Backend()
    layout: Layout = Layout()
    recipe: Recipe = Recipe()
    launch: Launch = Launch()
    rank: Rank = Rank()
    env: dict[str, str] = {}
    metrics: Metrics = Metrics()
    health: HealthLimits = HealthLimits()


def all_keys(section: type[Section] = Profile, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every key path that a profile may have, with its type."""
    keys: dict[tuple[str, ...], Any] = {}
    for name, kind in typing.get_type_hints(section).items():
        if (table := table_of(kind)) is not kind:
            keys[(*path, name)] = _without_table(kind)
        if table is not None:
            keys |= all_keys(table, (*path, name))
    return keys


def table_of(kind: Any) -> type[Section] | None:
    """The section that a key holds, or may hold instead of a value; None: it holds values only."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    return next((one for one in choices if isinstance(one, type) and issubclass(one, Section)), None)


def _without_table(kind: Any) -> Any:
    """The type of a key's values: `int | str | None` of `int | str | SlurmJob | None`."""
    table = table_of(kind)
    if table is None:
        return kind
    return functools.reduce(operator.or_, (one for one in typing.get_args(kind) if one is not table))


def to_toml_data(profile: Profile, defaults: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The profile as tables and values, without those that are defaults. `defaults`: the site's values, as tables; they replace those of the schema."""

    def trim(section: Section, known: Mapping[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for field in msgspec.structs.fields(section):
            value, given = getattr(section, field.name), known.get(field.name)
            if isinstance(value, Section):
                inner = trim(value, given if isinstance(given, Mapping) else {})
                if inner or field.default is None:
                    data[field.name] = inner
                continue
            if isinstance(value, dict):
                value, given = {name: text for name, text in value.items() if text != (given or {}).get(name)}, None
            usual = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            if _listed(value) not in (None, _listed(usual) if given is None else given):
                data[field.name] = _listed(value)
        return data

    return trim(profile, defaults)


def _listed(value: Any) -> Any:
    """A value with lists in place of tuples, as documents have them."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def type_words(kind: Any) -> str:
    """A type in words: `block | cyclic`, `number`, `list of [text, number]`."""
    if typing.get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(kind))
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return " | ".join(type_words(part) for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is dict:
        return f"table of {type_words(typing.get_args(kind)[1])}"
    if typing.get_origin(kind) is tuple:
        parts = typing.get_args(kind)
        return f"list of {type_words(parts[0])}" if parts[-1] is ... else f"[{', '.join(map(type_words, parts))}]"
    return {str: "text", int: "whole number", float: "number", bool: "true | false", Any: "any value"}[kind]
