"""Keeps which modules the script of a run uses, for the next launch with `launch.preload = "auto"`."""

from __future__ import annotations

from engine.core.errors import RankdeckError
from engine.core.plan.profile_checks import is_module_name
from engine.runs.imports import remember_modules
from engine.supervisor.ingest import Ingest
from engine.supervisor.log import note
from engine.supervisor.supervised import SupervisedRun


class ImportWatch:
    """Watches what rank 0 reports.

    Args:
        run: the run.
        ingest: the numbers of its ranks.
    """

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._kept: str | None = None

    def look(self) -> None:
        """Writes a new report down."""
        told = self._ingest.progress[0].uses
        if told is None or told == self._kept:
            return
        self._kept = told
        try:
            remember_modules(self._run.plan, tuple(name for name in told.split() if is_module_name(name)))
        except (RankdeckError, OSError) as error:
            note(f"can't keep what the script imports: {error}")
