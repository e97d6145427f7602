"""Groups of runs of a sweep that differ in one setting only, such as the seed. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from engine.core.metrics.direction import Direction
from engine.core.views.history import HistoryEntry, metric_names, swept_value, value_of


class Spread(msgspec.Struct, frozen=True):
    """A metric over the runs of a group that have it: mean, standard deviation of the sample (None: of one run there is none), and number of runs."""

    mean: float
    deviation: float | None
    runs: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Runs with the same `values` of all other settings. `run`: the first one. `best` and `last`: the best and the last value of each metric."""

    run: str
    values: dict[str, str]
    runs: int
    best: dict[str, Spread]
    last: dict[str, Spread]


def groups(entries: Sequence[HistoryEntry], names: Sequence[str]) -> list[Group]:
    """The groups of the runs of a sweep, in the order of their first runs. `names`: the settings that are the same in a group."""
    found: dict[tuple[str, ...], list[HistoryEntry]] = defaultdict(list)
    for one in entries:
        found[tuple(swept_value(one, name) for name in names)].append(one)
    return [
        Group(
            run=own[0].summary.run,
            values=dict(zip(names, values, strict=True)),
            runs=len(own),
            best=_spreads((name, one.best.get(name)) for one in own for name in one.best),
            last=_spreads((name, value_of(one, name)) for one in own for name in metric_names([one])),
        )
        for values, own in found.items()
    ]


def ranked(found: Sequence[Group], metric: str, toward: Direction | None, *, reverse: bool) -> list[Group]:
    """The groups by the mean of a metric: of its best values, best first; lowest last value first where it has no direction (`toward`)."""
    sign = -1.0 if toward == "max" else 1.0
    means = [(one, spread.mean * sign) for one in found if (spread := (one.best if toward else one.last).get(metric))]
    means.sort(key=lambda pair: pair[1], reverse=reverse)
    known = [one for one, _ in means]
    return known + [one for one in found if one not in known]


def _spreads(values: Iterable[tuple[str, float | None]]) -> dict[str, Spread]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, value in values:
        if value is not None:
            by_name[name].append(value)
    return {
        name: Spread(statistics.fmean(some), statistics.stdev(some) if len(some) > 1 else None, len(some))
        for name, some in by_name.items()
    }
