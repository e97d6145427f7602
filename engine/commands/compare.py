"""`rankdeck compare`: the results of runs side by side, and what differs between their profiles."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from engine.commands.output import narrate, print_json, print_table
from engine.core.errors import ProfileError
from engine.core.metrics.series import final_values
from engine.core.plan.settings import Settings, differing_settings, settings_of, shown_setting
from engine.core.views.view import Snapshot
from engine.planning.profiles import read_profile
from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its results by name, and the keys of its profile."""

    run: str
    results: dict[str, str | float | int | None]
    keys: Settings


def compare_runs(runs: Sequence[RunPaths], *, as_json: bool) -> None:
    """Prints a column for each run: results, then the keys of profiles that differ. Values that look like secrets are hidden.

    Args:
        runs: two or more.
        as_json: prints the same as JSON.

    Raises:
        SupervisorError: the files of a run can't be read.
    """
    columns = [_column(paths) for paths in runs]
    differing = differing_settings([one.keys for one in columns])
    if as_json:
        print_json(
            [
                {
                    "run": one.run,
                    "results": one.results,
                    "differs": {key: shown_setting(key, one.keys[key]) for key in differing if key in one.keys},
                }
                for one in columns
            ]
        )
        return
    names = dict.fromkeys(name for one in columns for name in one.results)
    print_table(
        [
            ("", *(one.run for one in columns)),
            *((name, *(_result_words(name, one.results.get(name)) for one in columns)) for name in names),
            *(
                (key, *(shown_setting(key, one.keys[key]) if key in one.keys else "-" for one in columns))
                for key in differing
            ),
        ]
    )


def _column(paths: RunPaths) -> Column:
    try:
        keys = settings_of(read_profile(paths.profile))
    except ProfileError:  # of an older rankdeck, or damaged: the results are there all the same
        narrate(f"the profile of {paths.run} can't be read, so its keys are left out")
        keys = {}
    return Column(run=paths.run, results=_results(stored_snapshot(paths)), keys=keys)


def _results(snapshot: Snapshot) -> dict[str, str | float | int | None]:
    run = snapshot.run
    end = time.time() if run.ended_at is None else run.ended_at
    others = {key: value for key, value in final_values(snapshot.series).items() if key not in ("loss", "throughput")}
    return {
        "state": run.state,
        "launched": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.launched_at)),
        "seconds": round(max(0.0, end - run.launched_at), 1),
        "attempts": run.attempt + 1,
        "ranks": run.world_size,
        "backend": run.backend,
        "step": run.step,
        "loss": run.loss,
        "throughput": run.throughput,
        **others,
    }


def _result_words(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if name == "seconds" or not isinstance(value, float):
        return str(value)
    return f"{value:.5g}"
