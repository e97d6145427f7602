"""Watches ranks that wait for a store which is gone: torch would let them wait for minutes."""

from __future__ import annotations

from engine.core.run import events as ev
from engine.core.run.state import Alive, Running, Starting
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

PERIOD = 0.5
"""Seconds between two looks. Reports of ranks from before the first look are here at the second, also from other nodes."""


class StoreWatch:
    """Looks for the same ranks at two looks in a row."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._seen: tuple[int, tuple[int, ...]] = (-1, ())

    def look(self, now: float) -> None:
        """Looks once, and reports ranks that wait."""
        state = self._run.state
        if not state.store_trouble or not isinstance(state.phase, Starting | Running) or "mpi" in state.backend:
            return  # ranks of mpi meet without a store
        self._ingest.catch_up()
        waiting = tuple(
            rank
            for rank, phase in enumerate(state.ranks)
            if isinstance(phase, Alive) and self._ingest.progress[rank].meeting == "joining"
        )
        before, self._seen = self._seen, (state.attempt, waiting)
        if waiting and self._seen == before:
            self._run.handle(ev.StoreMissed(at=now, attempt=state.attempt, ranks=waiting))
