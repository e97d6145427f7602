"""Watches that end a wait which takes too long: ranks wait for a store, ranks wait for each other in a rejoin, a run holds."""

from engine.core.run import events as ev
from engine.core.run.rejoin import patience
from engine.core.run.requests import IDLE_LIMIT, hold_ends_at, idle_since
from engine.core.run.state import Alive, Running, Starting
from engine.core.views.activity import orphan_words
from engine.supervisor.nodes.orders import Orders
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import WATCH_PERIOD, SupervisedRun

JOIN_LOOKS = 10  # looks in a row that find the same ranks waiting; at the run's own store they wait shorter

STORE_PERIOD = 0.5
"""Seconds between two looks of `StoreWatch`. Reports of ranks from before the first look are here at the second, also from other nodes."""


class Repeats:
    """Counts how often the same was seen in a row."""

    def __init__(self) -> None:
        self._seen: object = None
        self._count = 0

    def after(self, seen: object) -> int:
        """Takes what is seen now. Returns how often it was seen before, in a row."""
        self._count = self._count + 1 if seen == self._seen else 0
        self._seen = seen
        return self._count


class MeetingWatch:
    """Watches ranks that say how far their process group is."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._repeats = Repeats()

    def _ranks(self, meeting: str) -> tuple[int, ...]:
        """The living ranks whose last report has this word."""
        alive = (rank for rank, phase in enumerate(self._run.state.ranks) if isinstance(phase, Alive))
        return tuple(rank for rank in alive if self._ingest.progress[rank].meeting == meeting)


class JoinWatch(MeetingWatch):
    """Watches ranks whose own processes wait for a store that no process hosts, and says so once in an attempt, with the cure."""

    _told = -1  # the attempt in which it was said

    def look(self, now: float) -> None:
        attempt, waiting = self._run.state.attempt, self._ranks("orphan")
        if self._repeats.after((attempt, waiting)) >= JOIN_LOOKS and waiting and self._told != attempt:
            self._told = attempt
            self._run.warn(self._run.plan.places[waiting[0]].node, "environment", orphan_words(waiting))


class StoreWatch(MeetingWatch):
    """Watches ranks that wait for a store which is gone: torch would let them wait for minutes."""

    def look(self, now: float) -> None:
        state = self._run.state
        if not state.store_trouble or not isinstance(state.phase, Starting | Running) or "mpi" in state.backend:
            return  # ranks of mpi meet without a store
        self._ingest.catch_up()
        waiting = self._ranks("joining")
        if self._repeats.after((state.attempt, waiting)) and waiting:
            self._run.handle(ev.StoreMissed(at=now, attempt=state.attempt, ranks=waiting))


class RejoinWatch:
    """Watches rejoins, and reports ranks that do not meet in one generation in time."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._repeats = Repeats()

    def look(self, now: float) -> None:
        state = self._run.state
        limit = patience(state)
        looks = self._repeats.after(None if limit is None else (state.attempt, state.generation, limit))
        if limit is None or looks * WATCH_PERIOD < limit:
            return
        self._ingest.catch_up()
        if patience(self._run.state) == limit:
            self._run.handle(ev.RejoinOverdue(at=now, attempt=state.attempt, generation=state.generation))


class HoldWatch:
    """Ends a run that holds for too long, and lets go of what one without a living rank keeps in memory."""

    def __init__(self, run: SupervisedRun, orders: Orders) -> None:
        self._run, self._orders = run, orders
        self._let_go: float | None = None
        """Since when the run was idle when it was let go."""

    def look(self, now: float) -> None:
        state, hold_for = self._run.state, self._run.plan.launch.hold_for or 0.0
        ends_at, idle = hold_ends_at(state, hold_for), idle_since(state)
        if ends_at is not None and now >= ends_at:
            self._run.handle(ev.HoldOverdue(at=now, attempt=state.attempt, seconds=hold_for))
        elif idle is not None and idle != self._let_go and now >= idle + IDLE_LIMIT:
            self._let_go = idle
            self._orders.let_go()
