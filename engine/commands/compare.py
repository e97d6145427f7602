"""`rankdeck compare`: the results of runs side by side, and what differs between their profiles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from engine.commands.output import narrate, print_json, print_table
from engine.core.errors import ProfileError
from engine.core.plan.plan import HIDDEN, is_secret, shown_shell
from engine.core.plan.profile import to_toml_data
from engine.core.views.view import Snapshot
from engine.planning.profiles import read_profile
from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot

NOT_COMPARED = ("schema", "name", "description")
"""Keys of a profile that do not change what a run does."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its results by name, and the keys of its profile."""

    run: str
    results: dict[str, str | float | int | None]
    keys: dict[str, Any]


def compare_runs(runs: Sequence[RunPaths], *, as_json: bool) -> None:
    """Prints a column for each run: results, then the keys of profiles that differ. Values that look like secrets are hidden.

    Args:
        runs: two or more.
        as_json: prints the same as JSON.

    Raises:
        SupervisorError: the files of a run can't be read.
    """
    columns = [_column(paths) for paths in runs]
    keys = sorted({key for one in columns for key in one.keys})
    missing = object()
    first = columns[0].keys
    differing = [key for key in keys if any(one.keys.get(key, missing) != first.get(key, missing) for one in columns)]
    if as_json:
        print_json(
            [
                {
                    "run": one.run,
                    "results": one.results,
                    "differs": {key: _shown(key, one.keys[key]) for key in differing if key in one.keys},
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
            *((key, *(_key_words(key, one.keys) for one in columns)) for key in differing),
        ]
    )


def _column(paths: RunPaths) -> Column:
    try:
        profile = to_toml_data(read_profile(paths.profile))
    except ProfileError:  # of an older rankdeck, or damaged: the results are there all the same
        narrate(f"the profile of {paths.run} can't be read, so its keys are left out")
        profile = {}
    keys = {key: value for key, value in _flat(profile) if key not in NOT_COMPARED}
    return Column(run=paths.run, results=_results(stored_snapshot(paths)), keys=keys)


def _results(snapshot: Snapshot) -> dict[str, str | float | int | None]:
    run = snapshot.run
    end = time.time() if run.ended_at is None else run.ended_at
    metrics: dict[str, list[float]] = {}
    for dump in snapshot.series:
        newest = dump.recent[-1][2] if dump.recent else None
        if newest is not None and dump.key not in ("loss", "throughput"):
            metrics.setdefault(dump.key, []).append(newest)
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
        **{name: sum(values) / len(values) for name, values in metrics.items()},
    }


def _flat(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables, by its dotted key."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _flat(value, key)
        else:
            yield key, value


def _shown(key: str, value: Any) -> Any:
    """The value, without what looks like a secret."""
    if isinstance(value, list):
        before = ["", *map(str, value)]
        return [
            HIDDEN if is_secret(name.lstrip("-") if name.startswith("-") else "", str(word)) else word
            for name, word in zip(before, value, strict=False)
        ]
    if is_secret(key.rpartition(".")[2], str(value)):
        return HIDDEN
    return shown_shell(value) if key == "launch.setup" else value


def _key_words(key: str, keys: dict[str, Any]) -> str:
    if key not in keys:
        return "-"
    value = _shown(key, keys[key])
    return " ".join(map(str, value)) if isinstance(value, list) else str(value).replace("\n", " ")


def _result_words(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if name == "seconds" or not isinstance(value, float):
        return str(value)
    return f"{value:.5g}"
