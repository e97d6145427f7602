"""Values of a small curve in a table: the course of the values, in which no spike is lost. Pure."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.core.metrics.series import Bucket, Series

Values = Sequence[float | None]
Source = Series | Values  # a series, or values that are drawn in one cell each; None for values that are not finite

Scale = tuple[float, float]  # values of the lowest and the highest block

WINDOWS: tuple[tuple[str, float | None], ...] = (("whole run", None), ("10 min", 600.0), ("1 min", 60.0))
"""Ranges of a curve: words, and seconds before now."""

OUTSTANDING = 3.0  # a cell has a spike if its values are so many times as far apart as in most cells


class _Part(NamedTuple):
    low: float | None
    high: float | None
    odd: int


def spark_values(source: Source, width: int, since: float | None = None) -> list[float | None]:
    """At most `width` values, oldest first. A cell shows the middle of its lowest and highest value. If they are much further apart than
    in most cells, it shows the one that stands out from the cell before, or, in the first cell, from the next. None marks a cell with a
    value that was not finite. `since`: only newer values, in seconds since the epoch; None: all."""
    if not isinstance(source, Series):
        return list(source[-width:]) if width > 0 else []
    parts = _parts(source, since)
    if width <= 0 or not parts:
        return []
    count, size = min(width, len(parts)), len(parts)
    cells = [_cell(parts[at * size // count : (at + 1) * size // count]) for at in range(count)]
    spreads = [cell[1] / 2 - cell[0] / 2 for cell in cells if cell]
    most = OUTSTANDING * statistics.median(spreads) if spreads else 0.0
    values: list[float | None] = []
    for at, cell in enumerate(cells):
        if cell is None:
            values.append(None)
            continue
        low, high = cell
        beside = cells[at - 1] if at else (cells[1] if count > 1 else None)
        if beside is None or high / 2 - low / 2 <= most:
            values.append(low / 2 + high / 2)
        else:
            middle = beside[0] / 4 + beside[1] / 4
            values.append(low if abs(low / 2 - middle) >= abs(high / 2 - middle) else high)
    return values


def _cell(group: Sequence[_Part | Bucket]) -> tuple[float, float] | None:
    """The lowest and the highest value of a cell; None if it has none, or one that is not finite."""
    low, high = math.inf, -math.inf
    for part in group:  # one loop over plain numbers: a table draws thousands of cells a second
        if part.odd:
            return None
        if part.low is not None and part.low < low:
            low = part.low
        if part.high is not None and part.high > high:
            high = part.high
    return (low, high) if low <= high else None


def scale_of(sources: Iterable[Source], since: float | None = None) -> Scale | None:
    """The lowest and the highest finite value of several curves; None if there is none."""
    low, high = math.inf, -math.inf
    for source in sources:
        if isinstance(source, Series) and since is None:
            low, high = min(low, source.low), max(high, source.high)
        elif isinstance(source, Series):
            for part in _parts(source, since):
                if part.low is not None and part.low < low:
                    low = part.low
                if part.high is not None and part.high > high:
                    high = part.high
        else:
            finite = [value for value in source if value is not None and abs(value) < math.inf]
            low, high = min([low, *finite]), max([high, *finite])
    return (low, high) if low <= high else None


def _parts(series: Series, since: float | None) -> Sequence[_Part | Bucket]:
    """Points where they are known one by one for the whole window, else buckets."""
    if since is not None:
        recent = series.recent
        if recent and (recent[0][0] <= since or len(recent) < (recent.maxlen or 0)):
            return [_point(value) for at, _, value in recent if at >= since]
        return [one for one in series.buckets if one.end >= since]
    return series.buckets


def _point(value: float) -> _Part:
    return _Part(value, value, 0) if math.isfinite(value) else _Part(None, None, 1)
