"""The values that front ends show of a run, the same in `status --json`, on the socket and in the app. A subscriber receives one
`Snapshot`, then `Update`s with what has changed since the last message. A slow reader receives fewer updates: it misses only intermediate
values of rows."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.core.metrics.resources import GpuUse, ProcessUse
from engine.core.metrics.series import Point, SeriesDump
from engine.core.metrics.stretches import Late
from engine.core.numbers import duration
from engine.core.plan.plan import Swept
from engine.core.run.events import Found
from engine.core.run.state import ListedWord, RankWord, RestartKind, RunWord
from engine.core.views.goodput import Goodput

Activity = Literal["", "connecting", "opening_store", "starting_ranks", "joining", "rejoining", "rejoined", "node_away", "store_lost",
                   "restarting", "stopping", "clearing", "ended"]  # fmt: skip
"""The activity of a run; empty: nothing to report."""

LEAST_SHARE = 0.01  # of the time for which a rank is late: less is not worth a sentence
PROTOCOL = 1
"""Version of the protocol on a run's socket. Both sides send theirs first; different versions end the connection with an error."""


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
    loss_odd: str = ""  # `nan`, `inf` or `-inf` where `loss` is None because JSON has no such numbers
    throughput: float | None = None
    unit: str = ""
    gpu: GpuUse | None = None  # how it uses its GPU; None: it has none, or unknown
    process: ProcessUse | None = None  # resources that its process uses on the node; None: unknown
    since: float | None = None  # when the state began, seconds since the epoch
    seen: float | None = None  # when the rank last printed or reported something
    note: str = ""  # why it is in that state, in a few words: `SIGKILL`, `exit 1: ValueError: …`
    last_line: str = ""  # the newest line that it printed: raw
    aside: str = ""  # its work beside training, from its output: `validation 12/40`; raw
    is_derived: bool = False  # whether `throughput` is made from steps and time, because the rank prints none
    out_size: int = 0
    err_size: int = 0  # bytes in the rank's stdout and stderr files so far
    health: str = ""
    """`stalled`: no step for much longer than usual; `slow`; `nan`: its loss is not finite; empty: nothing is known to be wrong."""
    health_since: float | None = None  # when a stalled rank made its last step, or another mark began
    phase: str = ""  # its work instead of training, in the script's word: `eval`; raw
    late: Late | None = None  # how much later it arrives at collectives than most ranks do; None: not known


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `link`: `up`, `down` (being connected), `closed`, `given-up`."""

    name: str
    ranks: tuple[int, ...]
    link: str
    reason: str
    since: float


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause of a failure, in words."""

    rank: int | None
    headline: str  # `rank 2 was killed by SIGKILL`
    detail: str  # the exception of the traceback, or the meaning of the signal; one line
    traceback: str  # the last traceback that the rank printed: raw text of several lines; empty: none
    hint: str  # the next step
    others: tuple[int, ...] = ()  # other ranks that failed
    fix: str = ""  # a line to copy: a command, or a setting of a profile. Raw; empty: none.
    cause: str = ""  # the id of the known cause, or a word; see `Explanation.cause`
    followed: tuple[str, ...] = ()  # its consequences: ranks with the same one share a sentence; raw
    no_restart: str = ""
    """Why no automatic restart followed, although the profile asks for one; empty: it followed, or the profile does not ask."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    name: str
    state: RunWord
    doing: str  # the activity in words: `waiting for localhost`, `stopping (stopped by alice)`; may be empty
    attempt: int
    generation: int
    world_size: int
    backend: str
    program: str
    python: str = ""  # the Python of ranks; empty: they run another program
    launched_at: float
    ended_at: float | None
    attempt_since: float
    alive: int  # ranks whose process exists
    step: int | None
    steps: int | None  # total number of steps, if the script reports it
    loss: float | None
    throughput: float | None  # of all ranks together, `unit` per second
    unit: str
    checkpoint: int | None
    checkpoint_at: float | None
    failure: FailureView | None
    restart: str  # the effect of a restart now, in words; empty: none
    nodes: tuple[NodeView, ...]
    loss_odd: str = ""  # `nan`, `inf` or `-inf` where `loss` is None because JSON has no such numbers
    loss_ranks: tuple[int, ...] = ()  # ranks that own the loss of a pipeline; empty: every rank that prints one
    activity: Activity  # the run's activity. Decisions read it; `doing` is for people.
    restart_kind: RestartKind  # the effect of a restart now. Decisions read it; `restart` is for people.
    epoch: float | None = None
    epochs: int | None = None
    epoch_step: int | None = None
    epoch_steps: int | None = None  # as the script counts them in each epoch; None: it does not
    aside: str = ""  # a rank's work beside training: `validation 12/40`; raw
    is_derived: bool = False  # whether `throughput` is made from steps and time
    restart_ranks: tuple[int, ...] = ()  # ranks that a rejoin would start
    stall: StallView | None = None
    saved: SavedView | None = None  # checkpoints that the attempt has left, once it was ended; None: unknown
    job: JobView | None = None  # None: it runs in no job
    swept: Swept | None = None  # None: it belongs to no sweep
    is_early: bool = False  # whether `metrics.stop_when` has stopped it
    goodput: Goodput | None = None  # what it has done with its time; None: not known
    as_of: float | None = None  # when its supervisor, in a job, wrote the numbers to a file; None: they are of now


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a batch system that a run is in. `ends_at`: when its time limit ends it, in seconds since the epoch; None: not known. `suspended`:
    whether the batch system has stopped its processes; they go on later, and end later."""

    job: str
    partition: str = ""
    ends_at: float | None = None
    suspended: bool = False
    last_step: int | None = None  # the run's, if its pace is too slow to get there before the job ends

    def words(self, now: float) -> str:
        """`job 109 · main · ends in 8:10, before step 3000`."""
        before = "" if self.last_step is None else f", before step {self.last_step}"
        end = "suspended" if self.suspended else ""
        if self.ends_at is not None and not self.suspended:
            end = f"ends in {duration(self.ends_at - now)}{before}"
        return " · ".join(filter(None, (f"job {self.job}", self.partition, end)))


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that an attempt has left, and what is lost. Times are in seconds."""

    words: str
    found: Found
    after_signal: float | None  # when the newest was whole, after the ranks were told to stop; None: it was before
    lost_steps: int | None  # None: not known
    lost_seconds: float | None  # of training since the newest; None: there is none


class StallView(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    since: float  # when the first rank began to hang, seconds since the epoch
    waits: tuple[str, ...] = ()  # who waits for whom in collectives, a raw sentence each; empty: nobody, or unknown
    doing: tuple[str, ...] = ()  # where the ranks are in their code, one line for each group of them: raw
    late: tuple[int, ...] = ()  # ranks that others wait for
    place: tuple[str, int] | None = None
    """File and line in the user's code of the first hanging rank, else of a rank that does something else than most; raw."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the run's story, for people."""

    seq: int
    at: float
    text: str
    level: str = "info"  # info | notice | warning | error; commands also print those above info
    is_end: bool = False  # the run ends with it


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """Everything, at one moment."""

    run: RunView
    ranks: tuple[RankView, ...]
    series: tuple[SeriesDump, ...]
    events: tuple[EventLine, ...]

    @property
    def late_words(self) -> str:
        """`rank 5 is late by 80 ms a step, 6 % of the time`, about the rank that is late most; empty: none is, or not known."""
        known = [(one.late.share, one.rank, one.late.step_seconds) for one in self.ranks if one.late is not None]
        share, rank, seconds = max(known, default=(0.0, 0, 0.0))
        lasts = f"{1000 * seconds:.3g} ms a step, {100 * share:.0f} % of the time"
        return f"rank {rank} is late by {lasts}" if share >= LEAST_SHARE else ""


class Update(msgspec.Struct, frozen=True, kw_only=True, tag="update", tag_field="type"):
    """Changes since the last message. Rows replace the row of the same rank; points and events are new ones."""

    run: RunView | None = None
    ranks: tuple[RankView, ...] = ()
    points: tuple[Point, ...] = ()
    events: tuple[EventLine, ...] = ()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `rankdeck ps`. `reachable`: its supervisor answers, or the run has ended and needs none. `host`: the supervisor's.
    `elsewhere`: that is another host with the same home. The run can be reached only there."""

    run: str
    name: str
    state: ListedWord
    world_size: int
    backend: str
    launched_at: float
    ended_at: float | None = None
    attempt: int = 0
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    reason: str
    reachable: bool
    host: str
    elsewhere: bool = False
    metrics: dict[str, float | None] | None = None
    """Final values of all metrics, see `final_values`; None: the run has not ended, or an older version wrote this."""
    stalled: bool = False  # whether ranks hang
    nodes: tuple[str, ...] = ()  # of the last attempt
    job: JobView | None = None
    loss_odd: str = ""  # `nan`, `inf` or `-inf` where `loss` is None because JSON has no such numbers
    swept: Swept | None = None
    is_early: bool = False

    @property
    def sweep(self) -> str:
        """The sweep that it belongs to; empty: none."""
        return self.swept.sweep if self.swept is not None else ""


class RunNote(msgspec.Struct, frozen=True, kw_only=True):
    """`note.json`: the user's note about a run. `starred`: it is kept when old runs are removed."""

    text: str = ""
    starred: bool = False
