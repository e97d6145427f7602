"""`rankdeck runs --sweep`: the runs of a sweep, or groups of them, best first."""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from engine.client.history import History
from engine.commands.output import print_json, print_table
from engine.core.errors import UsageError
from engine.core.metrics.direction import main_metric
from engine.core.views import history as past
from engine.core.views.groups import Group, groups, ranked
from engine.core.views.history import HistoryEntry, SortKey, swept_value, value_of


def show_sweep(
    sweep: str, words: Sequence[str], key: str, over: str | None, *, reverse: bool, limit: int | None, **form: bool
) -> None:
    """Prints a row for each run of a sweep, or for each group of runs that differ in the setting `over` only. `key`: what to sort by; empty: the best
    value. A metric is shown too. `form`: see `_print`. Raises UsageError: there is no such sweep or setting, or no run has a metric of that name."""
    every = History().read()
    own = [one for one in every if sweep and one.summary.sweep == sweep]
    if not own:
        known = dict.fromkeys(one.summary.sweep for one in every if one.summary.sweep)
        hint = f"there is: {', '.join(known)}" if known else "rankdeck sweep starts one"
        raise UsageError(f"no run of a sweep {sweep!r} is kept", hint=hint)
    names, metrics = past.swept_names(own), past.metric_names(own)
    if over is not None and over not in names:
        raise UsageError(f"{sweep} has no setting {over!r}", hint=f"choose one of: {', '.join(names)}")
    metric = key if key in metrics else main_metric(one.best for one in own) or next(iter(metrics), "")
    toward = past.best_direction(own, metric)
    first = SortKey("best" if toward else "last", metric)
    keys = {"": first, "best": first, **{one: past.sort_key(one) for one in past.SORT_KEYS if over is None}}
    keys |= {} if over else {one: SortKey("value", one) for one in names}
    keys |= {one: first if one == metric else past.sort_key(one) for one in metrics}
    if key not in keys:
        hint = f"choose one of: {', '.join(filter(None, keys))}"
        raise UsageError(f"{'groups' if over else 'runs'} can't be sorted by {key!r}", hint=hint)
    chosen = past.filter_history(own, words)
    shown = metrics if form["as_csv"] else [metric] if metric else []
    if over is not None:
        found = ranked(groups(chosen, [one for one in names if one != over]), metric, toward, reverse=reverse)
        _print(_group_rows(found[:limit], shown), msgspec.to_builtins(found[:limit]), **form)
        return
    rows = past.sort_history(chosen, keys[key], reverse=reverse)[:limit]
    _print(_rows(rows, names, shown), [_data(one) for one in rows], **form)


def _print(rows: Iterable[list[str | float]], data: Any, *, as_json: bool, as_csv: bool) -> None:
    """Prints headings and rows as a table or as CSV, or the data as JSON."""
    if as_json:
        print_json(data)
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        print_table([[f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows])


def _group_rows(found: Sequence[Group], metrics: Sequence[str]) -> Iterator[list[str | float]]:
    """Headings, then a row for each group: its values, the number of its runs, and mean, deviation and number of runs of each metric."""
    names = [*found[0].values] if found else []
    best = [name for name in metrics if any(name in one.best for one in found)]
    columns = [f"{word} {name}" for word, some in (("best", best), ("last", metrics)) for name in some]
    yield [*names, "runs", *(f"{column}{end}" for column in columns for end in ("", " ±", " of"))]
    for one in found:
        spreads = [*(one.best.get(name) for name in best), *(one.last.get(name) for name in metrics)]
        cells = [cell for spread in spreads for cell in (msgspec.structs.astuple(spread) if spread else ("", "", 0))]
        yield [*one.values.values(), str(one.runs), *("" if cell is None else cell for cell in cells)]


def _rows(shown: Sequence[HistoryEntry], names: Sequence[str], metrics: Sequence[str]) -> Iterator[list[str | float]]:
    """Headings, then a row for each run: its values, and the best and the last value of metrics."""
    ranked = [name for name in metrics if any(name in one.best for one in shown)]
    best, last = [f"best {name}" for name in ranked], [f"last {name}" for name in metrics]
    yield ["run", *names, "state", "step", "seconds", *best, *last]
    for one in shown:
        step: list[str | float] = ["" if one.summary.step is None else str(one.summary.step), round(one.seconds, 3)]
        numbers = [*(one.best.get(name) for name in ranked), *(value_of(one, name) for name in metrics)]
        found = ["" if number is None else number for number in numbers]
        yield [one.summary.run, *(swept_value(one, name) for name in names), one.summary.state, *step, *found]


def _data(entry: HistoryEntry) -> dict[str, Any]:
    run = {key: getattr(entry.summary, key) for key in ("run", "state", "swept", "step", "steps")}
    return {**run, "seconds": round(entry.seconds, 3), "best": entry.best, "last": entry.metrics}
