"""The history of runs, and two of them side by side, read from the files of runs."""

import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import NamedTuple

from engine.client.protocols import Compared
from engine.core.errors import ProfileError, RankdeckError, SupervisorError
from engine.core.metrics.direction import Direction, best_values
from engine.core.metrics.series import final_values
from engine.core.numbers import DAY_AND_TIME, clock
from engine.core.plan.settings import Change, Settings, changes, launched_settings
from engine.core.run.state import ENDED_WORDS
from engine.core.views.comparison import Side, new_since
from engine.core.views.history import HistoryEntry
from engine.core.views.view import RunNote, RunSummary, Snapshot
from engine.planning.profiles import read_launched
from engine.runs.index import Index, stamp_of
from engine.runs.listing import listed_runs
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_note, read_plan


class Past(NamedTuple):
    """Facts about an ended run that never change. `before`: the run with which it was compared."""

    size: int
    metrics: dict[str, float | None]
    note: RunNote
    before: str | None
    changes: tuple[Change, ...] | None
    best: dict[str, float]
    toward: Direction | None


class History:
    """Reads the history; runs that can't change any more are read once."""

    def __init__(self) -> None:
        self._settings: dict[str, Settings | None] = {}
        self._past = Index("history", Past)

    def read(self) -> list[HistoryEntry]:
        """Every run that is kept, newest first. Reads several files of each run: call it off the event loop."""
        entries = []
        newest: dict[str, str] = {}
        now, runs = time.time(), runs_folder()
        for stamp, summary in reversed(listed_runs()):
            folder, before = f"{runs}/{summary.run}", newest.get(summary.name)
            newest[summary.name] = summary.run
            whole = (*stamp, *stamp_of(folder, f"{folder}/checkpoints"))
            past = self._past.find(summary.run, whole)
            if past is None or past.before != before:
                past = self._read(RunPaths(Path(folder)), summary, before)
                if summary.state in ENDED_WORDS:
                    self._past.keep(summary.run, whole, past)
            entries.append(
                HistoryEntry(
                    summary=summary,
                    seconds=max(0.0, (now if summary.ended_at is None else summary.ended_at) - summary.launched_at),
                    metrics=past.metrics,
                    changes=past.changes,
                    size=past.size,
                    note=past.note,
                    best=past.best,
                    toward=past.toward,
                )
            )
        self._past.save()
        return entries[::-1]

    def _read(self, paths: RunPaths, summary: RunSummary, before: str | None) -> Past:
        metrics, best, own = summary.metrics, dict[str, float](), self._settings_of(paths)
        toward = None if own is None else own.get("metrics.best")
        if metrics is None or summary.swept is not None:
            from engine.runs.replay import read_saved  # imports most of the core; ended runs of no sweep do not need it

            series = saved.series if (saved := read_saved(paths)) else []
            metrics = final_values(series) if metrics is None else metrics
            best = best_values(series, toward) if summary.swept is not None else {}
        earlier = self._settings_of(RunPaths(paths.folder.with_name(before))) if before is not None else None
        differ = None if own is None or earlier is None else tuple(changes(earlier, own))
        return Past(folder_size(paths.folder), metrics, read_note(paths), before, differ, best, toward)

    def _settings_of(self, paths: RunPaths) -> Settings | None:
        if paths.run not in self._settings:
            try:
                self._settings[paths.run] = launched_settings(read_launched(paths.profile), read_plan(paths))
            except (ProfileError, SupervisorError):  # of an older rankdeck, or damaged
                self._settings[paths.run] = None
        return self._settings[paths.run]


def folder_size(folder: Path) -> int:
    """Bytes that the files below a folder take up on the disk. Links are not followed; unreadable files are left out."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def read_side(paths: RunPaths) -> Compared:
    """One run for a comparison. Raises SupervisorError: its plan or journal can't be read."""
    from engine.runs.origins.origin import read_origin  # both import most of the core, which lists do not need
    from engine.runs.replay import stored_snapshot

    plan = read_plan(paths)
    try:
        settings = launched_settings(read_launched(paths.profile), plan)
    except ProfileError:  # an older rankdeck has written it, or it is damaged; the rest can still be read
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
    return Compared(side, snapshot)


MOST_EARLIER = 200  # newest runs among which the last good one of a program is sought


def news_of(paths: RunPaths) -> str:
    """Compares a run with the last one of the same program that ended well, in one line; empty: nothing differs, or there is none."""
    with contextlib.suppress(RankdeckError):
        plan, found = read_plan(paths), iter([summary for _, summary in listed_runs()])
        list(itertools.takewhile(lambda summary: summary.run != paths.run, found))
        for summary in itertools.islice(found, MOST_EARLIER):
            other = RunPaths(runs_folder() / summary.run)
            if summary.state == "succeeded" and read_plan(other).program.target == plan.program.target:
                return new_since(read_side(other).side, read_side(paths).side)
    return ""


def _results(snapshot: Snapshot) -> dict[str, str | float | int | None]:
    run = snapshot.run
    end = time.time() if run.ended_at is None else run.ended_at
    metrics = final_values(snapshot.series)
    metrics.pop("loss", None)
    each = metrics.pop("throughput", None)
    used = run.goodput.until(end) if run.goodput is not None else None
    shares = used.shares() if used is not None else {}
    return {
        "state": run.state,
        "launched": clock(run.launched_at, DAY_AND_TIME),
        "seconds": round(max(0.0, end - run.launched_at), 1),
        **{f"{part} %": round(100 * share, 1) for part, share in shares.items()},
        "repeated steps": used.repeated_steps if used is not None else None,
        "attempts": run.attempt + 1,
        "ranks": run.world_size,
        "backend": run.backend,
        "step": run.step,
        "loss": run.loss,
        "throughput": run.throughput,
        "throughput of a rank": each,
        **metrics,
    }
