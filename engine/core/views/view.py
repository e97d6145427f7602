"""What a front end sees of a run: small frozen values, the same in `status --json`, on the socket and in the app.

A subscriber gets one `Snapshot`, then `Update`s that hold only what changed since the last message that it got. How many
arrive depends on how fast it reads; nothing is lost by reading slowly but intermediate values of a row.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.core.metrics.gpu_use import GpuUse
from engine.core.metrics.series import Point, SeriesDump
from engine.core.run.state import RankWord, RunWord

Activity = Literal[
    "",
    "connecting",
    "opening_store",
    "starting_ranks",
    "joining",
    "rejoining",
    "node_away",
    "store_lost",
    "restarting",
    "stopping",
    "clearing",
    "ended",
    "unknown",
]
"""What a run is doing; empty: nothing to report, `unknown`: its supervisor is older than this field."""

RestartKind = Literal["none", "rejoin", "attempt", "unknown"]
"""What a restart would do: nothing, start the dead ranks, or start all ranks. `unknown`: as for `Activity`."""

PROTOCOL = 1
"""Version of what is spoken on a run's socket. Both sides say theirs first; different versions part with a clear word."""


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the current attempt. `exit`: exit code, or minus a signal's number. `throughput`: `unit` per second."""

    rank: int
    node: str
    local_rank: int
    pid: int | None
    state: RankWord
    exit: int | None
    attempt: int
    generation: int
    step: int | None = None
    loss: float | None = None
    throughput: float | None = None
    unit: str = ""
    gpu: GpuUse | None = None
    """How it uses its GPU; None where it has none, or nothing is known."""
    since: float | None = None
    """When the state began, seconds since the epoch."""
    seen: float | None = None
    """When the rank last printed or reported something."""
    note: str = ""
    """Why it is in that state, in a few words: `SIGKILL`, `exit 1: ValueError: …`."""
    last_line: str = ""
    """The newest line that it printed: raw, to be sanitised where it is shown."""
    out_size: int = 0
    err_size: int = 0
    """Bytes in the rank's stdout and stderr files so far."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `link`: `up`, `down` (being connected), `closed`, `given-up`."""

    name: str
    ranks: tuple[int, ...]
    link: str
    reason: str
    since: float


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Why the run is not well: the root cause, in words."""

    rank: int | None
    headline: str
    """`rank 2 was killed by SIGKILL`"""
    detail: str
    """The exception of the traceback, or what is known about a signal; one line."""
    traceback: str
    """The last traceback that the rank printed: raw text of several lines, or empty."""
    hint: str = msgspec.field(name="advice")
    """The next step."""
    others: tuple[int, ...] = ()
    """Ranks that failed too, as a consequence or by themselves."""
    fix: str = ""
    """A line to be copied that may help: a command, or a setting of a profile. Raw; empty where there is none."""
    cause: str = ""
    """The id of the known cause, or a word; see `engine.core.diagnosis.Explanation`."""
    followed: tuple[str, ...] = ()
    """What followed from it, a sentence for all ranks that it happened to: raw."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a whole."""

    run: str
    name: str
    state: RunWord
    doing: str
    """What is under way, in words: `waiting for localhost`, `stopping (stopped by alice)`. Empty: nothing special."""
    attempt: int
    generation: int
    world_size: int
    backend: str
    program: str
    launched_at: float
    ended_at: float | None
    attempt_since: float
    alive: int
    """Ranks whose process exists."""
    step: int | None
    steps: int | None
    """Steps in all, where the script said so."""
    loss: float | None
    throughput: float | None
    """Of all ranks together, `unit` per second."""
    unit: str
    checkpoint: int | None
    checkpoint_at: float | None
    failure: FailureView | None
    restart: str
    """What a restart would do now, in words for people; empty where it would do nothing."""
    nodes: tuple[NodeView, ...]
    activity: Activity = "unknown"
    """What is under way. Decisions read it; `doing` is for people."""
    restart_kind: RestartKind = "unknown"
    """What a restart would do now. Decisions read it; `restart` is for people."""
    restart_ranks: tuple[int, ...] = ()
    """Ranks that a rejoin would start."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the run's story, for people."""

    seq: int
    at: float
    text: str
    level: str = "info"
    """info | notice | warning | error; those above info are told by commands too"""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """Everything, at one moment."""

    run: RunView
    ranks: tuple[RankView, ...]
    series: tuple[SeriesDump, ...]
    events: tuple[EventLine, ...]


class Update(msgspec.Struct, frozen=True, kw_only=True, tag="update", tag_field="type"):
    """What changed since the last message. Rows replace the row of the same rank; points and events are new ones."""

    run: RunView | None = None
    ranks: tuple[RankView, ...] = ()
    points: tuple[Point, ...] = ()
    events: tuple[EventLine, ...] = ()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `rankdeck ps`. `reachable`: its supervisor answers, or the run has ended and needs none."""

    run: str
    name: str
    state: RunWord
    world_size: int
    backend: str
    launched_at: float
    ended_at: float | None
    attempt: int
    step: int | None
    steps: int | None
    loss: float | None
    reason: str
    reachable: bool
    host: str
