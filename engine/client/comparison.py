"""Reads the files of runs for a comparison (`engine.core.views.comparison`)."""

from __future__ import annotations

import time

from engine.client.protocols import Compared
from engine.core.errors import ProfileError
from engine.core.metrics.series import final_values
from engine.core.numbers import DAY_AND_TIME, clock
from engine.core.plan.settings import launched_settings
from engine.core.views.comparison import Side
from engine.core.views.view import Snapshot
from engine.planning.profiles import read_profile
from engine.runs.origin import read_origin
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan
from engine.runs.replay import stored_snapshot


def read_side(paths: RunPaths) -> Compared:
    """One run for a comparison.

    Raises:
        SupervisorError: its plan or journal can't be read.
    """
    plan = read_plan(paths)
    try:
        settings = launched_settings(read_profile(paths.profile), plan)
    except ProfileError:  # of an older rankdeck, or damaged: the rest is there all the same
        settings = None
    snapshot, recorded = stored_snapshot(paths), read_origin(paths)
    side = Side(
        run=paths.run,
        results=_results(snapshot),
        settings=settings,
        plan=plan,
        launched_at=snapshot.run.launched_at,
        origin=recorded.origin if recorded is not None else None,
        patch=recorded.diff.decode(errors="replace") if recorded is not None else "",
    )
    return Compared(side, snapshot.series)


def _results(snapshot: Snapshot) -> dict[str, str | float | int | None]:
    run = snapshot.run
    end = time.time() if run.ended_at is None else run.ended_at
    metrics = final_values(snapshot.series)
    metrics.pop("loss", None)
    each = metrics.pop("throughput", None)
    return {
        "state": run.state,
        "launched": clock(run.launched_at, DAY_AND_TIME),
        "seconds": round(max(0.0, end - run.launched_at), 1),
        "attempts": run.attempt + 1,
        "ranks": run.world_size,
        "backend": run.backend,
        "step": run.step,
        "loss": run.loss,
        "throughput": run.throughput,
        "throughput of a rank": each,
        **metrics,
    }
