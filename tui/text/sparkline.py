"""A small curve in one line of text: the course of a series, in which no spike is lost. Textual's own `Sparkline` raises ValueError on
NaN and infinity (8.2.8), stretches a short series over its width and draws a constant one as empty; a diverged loss must neither end the
app nor look like a good one."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.core.metrics.series import Bucket, Series
from tui.text.marks import signs

Scale = tuple[float, float]  # values of the lowest and the highest block

WINDOWS: tuple[tuple[str, float | None], ...] = (("whole run", None), ("10 min", 600.0), ("1 min", 60.0))
"""Ranges of a curve: words, and seconds before now."""

OUTSTANDING = 3.0  # a cell has a spike if its values are 3 times as far apart as in most cells


class _Part(NamedTuple):
    low: float | None
    high: float | None
    odd: int


def spark_values(source: Series | None, width: int, since: float | None = None) -> list[float | None]:
    """At most `width` values, oldest first. A cell shows the middle of its lowest and highest value. If they are much further apart than
    in most cells, it shows the one that stands out from the cell before, or, in the first cell, from the next. None marks a cell with a
    value that was not finite. `since`: only newer values, in seconds since the epoch; None: all."""
    parts = _parts(source, since) if source is not None else ()
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


def scale_of(sources: Iterable[Series | None], since: float | None = None) -> Scale | None:
    """The lowest and the highest finite value of several curves; None if there is none."""
    low, high = math.inf, -math.inf
    for source in filter(None, sources):
        if since is None:
            low, high = min(low, source.low), max(high, source.high)
            continue
        for part in _parts(source, since):
            if part.low is not None and part.low < low:
                low = part.low
            if part.high is not None and part.high > high:
                high = part.high
    return (low, high) if low <= high else None


def _parts(series: Series, since: float | None) -> Sequence[_Part | Bucket]:
    """Points where they are known one by one for the whole window, else buckets."""
    if since is not None:
        recent = series.recent
        if recent and (recent[0][0] <= since or len(recent) < (recent.maxlen or 0)):
            newest = (value for at, _, value in recent if at >= since)
            return [_Part(one, one, 0) if math.isfinite(one) else _Part(None, None, 1) for one in newest]
        return [one for one in series.buckets if one.end >= since]
    return series.buckets


def sparkline(
    values: Sequence[float | None], width: int, *, ascii: bool = False, scale: tuple[float, float] | None = None
) -> str:
    """Draws the newest values, each in one cell.

    Args:
        values: oldest first, and finite. `None` stands for a value that was not finite, and gets a sign.
        width: cells. A shorter series leaves its left empty.
        scale: the values of the lowest and the highest block; None: the extremes of the shown values.

    Returns:
        Exactly `width` characters of one cell each. A series that does not change is a line at half height.
    """
    if width <= 0:
        return ""
    drawn = signs(ascii=ascii)
    shown = values[-width:]
    finite = [value for value in shown if value is not None]
    low, high = scale or (min(finite, default=0.0), max(finite, default=0.0))
    # Halves, because the difference of two large floats can be infinite.
    span = high / 2 - low / 2
    last = len(drawn.blocks) - 1
    cells: list[str] = []
    for value in shown:  # a table draws thousands of cells a second
        if value is None:
            cells.append(drawn.odd)
            continue
        place = round((value / 2 - low / 2) / span * last) if span > 0 else last // 2
        cells.append(drawn.blocks[0 if place < 0 else last if place > last else place])
    return "".join(cells).rjust(width)
