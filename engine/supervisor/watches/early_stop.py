"""Stops a run whose curve says that the rest is not worth its time: `metrics.stop_when`."""

import asyncio
import contextlib

from engine.core.errors import RankdeckError
from engine.core.metrics.direction import direction
from engine.core.metrics.series import Series
from engine.core.metrics.stopping import best_of, why_stop
from engine.core.plan.document.stopping import StopRule, stop_rule
from engine.core.run import events as ev
from engine.core.run.state import ENDED_WORDS, Running
from engine.runs.listing import summaries
from engine.runs.paths import RunPaths
from engine.runs.replay import read_saved
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import SupervisedRun

SWEEP_PERIOD = 20.0  # seconds between two looks at the other runs of a sweep


class EarlyStopWatch:
    """Watches one metric of a run."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        text, swept = run.plan.metrics.stop_when, run.plan.swept
        self._rule = stop_rule(text) if text else None
        if self._rule is not None and (best := run.plan.metrics.best) is not None:
            self._rule = self._rule._replace(toward=direction(self._rule.metric, best))
        self._sweep = swept.sweep if self._rule and self._rule.best == "sweep.best" and swept is not None else ""
        """The sweep whose best value counts; empty: none does."""
        self._points = 0
        self._others: dict[str, float] = {}
        """The best value of the metric in other runs of the sweep."""
        self._ended: set[str] = set()
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    def look(self, now: float) -> None:
        """Stops the run if the rule holds."""
        run, rule, ingest = self._run, self._rule, self._ingest
        if rule is None or ingest.points_seen == self._points or not isinstance(run.state.phase, Running):
            return
        if self._sweep and now >= self._read_at + SWEEP_PERIOD:
            self._read_at = now
            self._reading = run.tasks.create_task(self._read(rule), name="the best of the sweep")
        if self._reading is not None and not self._reading.done():
            return
        self._points = ingest.points_seen
        curves = [curve for rank in range(run.plan.world_size) if (curve := ingest.series.get(rank, rule.metric))]
        if text := why_stop(rule, curves, run.state.attempt_since, self._others.values()):
            attempt = run.state.attempt
            run.handle(
                ev.HealthNoticed(at=now, attempt=attempt, kind="early-stop", ranks=(), text=text, policy="finish")
            )

    async def _read(self, rule: StopRule) -> None:
        with contextlib.suppress(OSError, RankdeckError):  # a later look tries again
            await asyncio.to_thread(self._read_others, rule)

    def _read_others(self, rule: StopRule) -> None:
        """Reads the best value of the metric in each other run of the sweep."""
        for one in summaries():
            if one.sweep != self._sweep or one.run in {self._run.paths.run, *self._ended}:
                continue
            saved = read_saved(RunPaths(self._run.paths.folder.parent / one.run))
            dumps = [dump for dump in saved.series if dump.key == rule.metric] if saved is not None else []
            if (best := best_of(rule, [*map(Series.load, dumps)])) is not None:
                self._others[one.run] = best
            if one.state in ENDED_WORDS:
                self._ended.add(one.run)
