"""Watches rejoins, and reports ranks that do not meet in one generation in time."""

from __future__ import annotations

from engine.core.run import events as ev
from engine.core.run.rejoin import patience
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import WATCH_PERIOD, SupervisedRun


class RejoinWatch:
    """Counts for how long the ranks have not moved on in a rejoin."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._seen: tuple[int, int, float] | None = None
        self._looks = 0

    def look(self, now: float) -> None:
        """Looks once, and reports a rejoin that takes too long."""
        state = self._run.state
        limit = patience(state)
        seen = None if limit is None else (state.attempt, state.generation, limit)
        self._looks = self._looks + 1 if seen == self._seen else 0
        self._seen = seen
        if limit is None or self._looks * WATCH_PERIOD < limit:
            return
        self._ingest.catch_up()
        if patience(self._run.state) == limit:
            event = ev.RejoinOverdue(at=now, attempt=state.attempt, generation=state.generation)
            self._run.handle(event)
