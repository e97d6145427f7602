"""A run as the screen shows it: a pure fold of what its supervisor sends. No Textual, no clock, no I/O. The socket's messages are applied
as they come, whatever the screen does; a timer then paints what `revision` says is new. So a slow terminal delays painting and nothing
else, and a burst of updates costs one paint."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from engine.core.metrics.series import Series, SeriesSet
from engine.core.run.state import ENDED_WORDS
from engine.core.views.pace import Pace
from engine.core.views.view import EventLine, RankView, RunView, Snapshot, Update

LOSS = "loss"
THROUGHPUT = "throughput"  # names of the two series in the table and the chart

MAX_EVENTS = 1000  # most lines of the run's story: far more than a person reads, and a limit if a rank fails in a loop
IMPORTING = "importing torch"  # note of ranks that have no process yet, while torch is imported


class Row(NamedTuple):
    """One rank in the table: its view, and its two series, which grow."""

    view: RankView
    throughput: Series | None = None
    loss: Series | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The two lines above the table: the run, and its consequences. Times in seconds; None: not known."""

    run: RunView
    now: float  # seconds since the epoch
    title: str
    away: Mapping[str, float]  # seconds for which each node has been unreachable
    fraction: float | None  # steps done, of all steps
    eta: float | None
    elapsed: float
    stalled: float | None  # for how long ranks hang
    loss: float | None
    checkpoint_age: float | None


class RunModel:
    """One run as its messages describe it. `revision` grows with every message."""

    def __init__(self) -> None:
        self.run: RunView | None = None
        self.series = SeriesSet()
        self.events: deque[EventLine] = deque(maxlen=MAX_EVENTS)
        self.revision = 0
        self.snapshots = 0
        self.points = 0
        self._ranks: dict[int, RankView] = {}
        self._rows: dict[int, Row] = {}
        self._stale: set[int] = set()
        self._pace = Pace()
        self._imports = False
        self.newest_event = -1

    # --- what comes in ------------------------------------------------------------------------------------------------

    def apply(self, message: Snapshot | Update) -> None:
        """Applies one message. A snapshot replaces everything; it is the first message of a connection."""
        self.revision += 1
        match message:
            case Snapshot():
                self._begin(message)
            case Update():
                if message.run is not None:
                    self._set_run(message.run)
                for view in message.ranks:
                    self._set_rank(view)
                for point in message.points:
                    self.points += 1
                    self.series.append(point)
                    if point.key in (LOSS, THROUGHPUT):
                        self._stale.add(point.rank)
                    if point.step is not None:
                        self._pace.note(point.at, point.step)
                self._add_events(message.events)

    def _begin(self, snapshot: Snapshot) -> None:
        self.snapshots += 1
        self.points += 1
        self.series = SeriesSet(snapshot.series)
        self.events.clear()
        self.newest_event = -1
        self._ranks.clear()
        self._rows.clear()
        self._pace.clear()
        self._set_run(snapshot.run)
        for view in snapshot.ranks:
            self._set_rank(view)
        self._add_events(snapshot.events)
        steps = [(at, step) for dump in snapshot.series for at, step, _ in dump.recent if step is not None]
        for at, step in sorted(pair for pair in steps if pair[0] >= snapshot.run.attempt_since):
            self._pace.note(at, step)

    def _set_run(self, run: RunView) -> None:
        if self.run is not None and (run.attempt, run.generation) != (self.run.attempt, self.run.generation):
            self._pace.clear()
        self.run = run
        if self._imports != (imports := (run.alive == 0 and run.activity in ("opening_store", "starting_ranks"))):
            self._imports = imports
            self._stale.update(self._ranks)

    def _set_rank(self, view: RankView) -> None:
        self._ranks[view.rank] = view
        self._stale.add(view.rank)

    def _add_events(self, events: tuple[EventLine, ...]) -> None:
        for event in events:
            if event.seq > self.newest_event:
                self.newest_event = event.seq
                self.events.append(event)

    # --- what is shown ------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.run is not None and self.run.state in ENDED_WORDS

    @property
    def attempt(self) -> int:
        """The current attempt, or the last one."""
        return self.run.attempt if self.run is not None else 0

    @property
    def world_size(self) -> int:
        return self.run.world_size if self.run is not None else 0

    def rank(self, rank: int | None) -> RankView | None:
        """One rank as it was last reported; None for none."""
        return None if rank is None else self._ranks.get(rank)

    def rows(self) -> list[Row]:
        """All ranks in order. The row of a rank without news is the same object as before."""
        for rank in self._stale:
            if (view := self._ranks.get(rank)) is not None:
                self._rows[rank] = self._row(view)
        self._stale.clear()
        return [self._rows[rank] for rank in sorted(self._rows)]

    def away(self, now: float) -> dict[str, float]:
        """Seconds since each unreachable node was lost, by its name; `now` is of the supervisor's host."""
        return {} if self.run is None else _away(self.run, now)

    def _row(self, view: RankView) -> Row:
        loss = self.series.get(view.rank, LOSS)
        throughput = self.series.get(view.rank, THROUGHPUT)
        if view.loss is None and self._diverged(loss):
            view = msgspec.structs.replace(view, loss=math.nan)
        if self._imports and view.pid is None and not view.note:
            view = msgspec.structs.replace(view, note=IMPORTING)
        return Row(view=view, throughput=throughput, loss=loss)

    def header(self, now: float, title: str = "") -> Header | None:
        """The run as a whole; `now` is of the supervisor's host; `title`: empty for the name of its profile. None before the first message."""
        run = self.run
        if run is None:
            return None
        fraction = min(1.0, max(0.0, run.step / run.steps)) if run.step is not None and run.steps else None
        return Header(
            run=run,
            now=now,
            title=title or run.name,
            away=_away(run, now),
            fraction=fraction,
            eta=self._pace.seconds_left(run),
            elapsed=max(0.0, (now if run.ended_at is None else run.ended_at) - run.launched_at),
            stalled=None if run.stall is None else max(0.0, now - run.stall.since),
            loss=self._loss(run),
            checkpoint_age=None if run.checkpoint_at is None else max(0.0, now - run.checkpoint_at),
        )

    def _loss(self, run: RunView) -> float | None:
        if run.loss is not None:
            return run.loss
        return math.nan if any(self._diverged(self.series.get(rank, LOSS)) for rank in self._ranks) else None

    def _diverged(self, series: Series | None) -> bool:
        """Whether the newest value of this attempt is not finite."""
        if series is None or not series.recent or self.run is None:
            return False
        at, _, value = series.recent[-1]
        return at >= self.run.attempt_since and not math.isfinite(value)


def _away(run: RunView, now: float) -> dict[str, float]:
    """Unreachable nodes, each with its seconds. While a run starts, no node has been reached yet."""
    if run.state not in ("running", "holding"):
        return {}
    return {node.name: now - node.since for node in run.nodes if node.link == "down"}
