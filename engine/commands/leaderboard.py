"""`rankdeck runs --sweep`: the runs of a sweep, best first."""

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from engine.client.history import History
from engine.commands.output import print_json, print_table
from engine.core.errors import UsageError
from engine.core.metrics.direction import direction, main_metric
from engine.core.views import history as past
from engine.core.views.history import HistoryEntry, swept_value, value_of


def show_sweep(
    sweep: str, words: Sequence[str], key: str, *, reverse: bool, limit: int | None, as_json: bool, as_csv: bool
) -> None:
    """Prints a row for each run of a sweep. `key`: what to sort by; empty: the best value. A metric is shown too. Raises UsageError: there is no
    such sweep, or no run has a metric of that name."""
    every = History().read()
    own = [one for one in every if sweep and one.summary.sweep == sweep]
    if not own:
        known = dict.fromkeys(one.summary.sweep for one in every if one.summary.sweep)
        hint = f"there is: {', '.join(known)}" if known else "rankdeck sweep starts one"
        raise UsageError(f"no run of a sweep {sweep!r} is kept", hint=hint)
    names, metrics = past.swept_names(own), past.metric_names(own)
    keys = {**{one: one for one in (past.BEST, *past.SORT_KEYS, *metrics)}, **{one: past.VALUE + one for one in names}}
    if key and key not in keys:
        raise UsageError(f"runs can't be sorted by {key!r}", hint=f"choose one of: {', '.join(keys)}")
    metric = key if key in metrics else main_metric(one.best for one in own) or next(iter(metrics), "")
    is_best = key in ("", past.BEST) or (key == metric and direction(metric) is not None)
    ranked = f"{past.BEST} {metric}" if is_best else keys[key]
    shown = past.sort_history(past.filter_history(own, words), ranked, reverse=reverse)[:limit]
    if as_json:
        print_json([_data(one) for one in shown])
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(_rows(shown, names, metrics))
    else:
        rows = _rows(shown, names, [metric] if metric else [])
        print_table([[f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows])


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
