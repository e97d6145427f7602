"""Notices when a run needs its user, from one reading of the list of runs to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.client.notify import Telling
from engine.core.settings import Occasion
from engine.core.views.occasions import Condition, condition, occasion_of, telling
from engine.core.views.view import RunSummary


class RunWatch:
    """Compares lists of runs, to tell the user of some occasions; the state in which runs older than `since` are found is no news."""

    def __init__(self, on: Collection[Occasion], since: float) -> None:
        self._on, self._since = on, since
        self._known: dict[str, Condition] = {}

    def look(self, runs: Iterable[RunSummary]) -> list[Telling]:
        """The messages for the user after this reading."""
        told = []
        for run in runs:
            now = condition(run)
            before = self._known.get(run.run, Condition() if run.launched_at >= self._since else now)
            self._known[run.run] = now
            occasion = occasion_of(before, now)
            if occasion is not None and occasion in self._on:
                told.append(Telling(occasion, run.run, run.name, telling(occasion, now)))
        return told
