"""Watches ranks whose own processes wait for a store that no process hosts, and says so once in an attempt, with the cure."""

from __future__ import annotations

from engine.core.run.state import Alive
from engine.core.views.activity import orphan_words
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

LOOKS = 10
"""Looks in a row that find the same ranks waiting. Processes that meet at the run's own store wait much shorter."""


class JoinWatch:
    """Counts for how long processes of the same ranks wait."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._seen: tuple[int, tuple[int, ...]] = (-1, ())
        self._looks = 0
        self._told = -1
        """The attempt in which it was said."""

    def look(self, now: float) -> None:
        """Looks once."""
        state = self._run.state
        waiting = tuple(
            rank
            for rank, phase in enumerate(state.ranks)
            if isinstance(phase, Alive) and self._ingest.progress[rank].meeting == "orphan"
        )
        seen = (state.attempt, waiting)
        self._looks = self._looks + 1 if seen == self._seen else 0
        self._seen = seen
        if waiting and self._looks >= LOOKS and self._told != state.attempt:
            self._told = state.attempt
            node = self._run.plan.places[waiting[0]].node
            text = orphan_words(waiting)
            self._run.warn(node, "environment", text)
