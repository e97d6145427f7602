"""Watches that ranks which rejoin meet in one generation, and reports where they do not in time."""

from __future__ import annotations

import asyncio
import time

from engine.core.run import events as ev
from engine.core.run.rejoin import patience
from engine.supervisor.ingest import Ingest
from engine.supervisor.supervised import SupervisedRun

LOOK_PAUSE = 1.0
"""Seconds between two looks. Looks are counted instead of time: a pause of this process is not the ranks' delay."""


class RejoinWatch:
    """Counts for how long ranks have stayed as they are in a rejoin.

    Args:
        run: the run.
        ingest: what its ranks have reported.
    """

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._seen: tuple[int, int, float] | None = None
        self._looks = 0

    async def keep(self) -> None:
        """Looks again and again. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_PAUSE)
            self.look()

    def look(self) -> None:
        """Looks once, and reports a rejoin whose time is over."""
        state = self._run.state
        limit = patience(state)
        seen = None if limit is None else (state.attempt, state.generation, limit)
        self._looks = self._looks + 1 if seen == self._seen else 0
        self._seen = seen
        if limit is None or self._looks * LOOK_PAUSE < limit:
            return
        self._ingest.catch_up()
        if patience(self._run.state) == limit:
            event = ev.RejoinOverdue(at=time.time(), attempt=state.attempt, generation=state.generation)
            self._run.handle(event)
