"""Reduces series to curves with as many points as a chart has columns.

A restart from a checkpoint repeats steps: the last values of a step count, and the restart is marked.

A column keeps its lowest and highest value, so that no spike is lost; with many ranks it keeps the lowest value, the mean and the highest
value. A rank without a value in the column counts with its last value. Values that are not finite are kept separately.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from engine.core.metrics.series import Bucket, Series

NOISY = 0.9  # the smoothing of curves whose trend noise hides
LEAST_NOISY = 20  # fewest points for which this is decided
NOISE = 0.25  # how much noise does: the typical change between two points, as a share of the smoothed curve's range


class Look(NamedTuple):
    log: bool = False  # values are on a logarithmic axis; those that are not positive are left out
    by_time: bool = False  # x is in seconds, even if values have steps
    smoothing: float | None = 0.0
    """Share of earlier values in each value, as TensorBoard smooths; 0: no smoothing. None: `NOISY` for curves whose trend is hidden by noise, else 0."""
    begin: float = 0.0
    end: float = 1.0  # which part of the run is drawn
    chosen: str = ""  # a curve that is drawn above the band
    most: int = 4  # most curves that are drawn separately; more are drawn as one band


class Curve(NamedTuple):
    """Points in order of x, none of them NaN or infinite."""

    name: str  # empty: the legend does not name it
    x: list[float]
    y: list[float]
    is_faint: bool = False  # it lies behind the others: the limits of a band, or values that are also drawn smoothed


class Curves(NamedTuple):
    """The content of a chart. `odd`: places of values that were not finite. `by_step`: x is in steps, else in seconds."""

    curves: list[Curve]  # the one to see first
    smoothing: float  # of the curves that are not faint
    odd: list[float]
    restarts: list[float]  # steps from which a later attempt continued
    by_step: bool
    x_range: tuple[float, float]
    y_range: tuple[float, float]


class _Column:
    """All values that fall into one column of the screen."""

    def __init__(self) -> None:
        self.low = math.inf
        self.high = -math.inf
        self.mean = 0.0
        self.count = 0

    def add(self, bucket: Bucket) -> None:
        if bucket.low is None or bucket.high is None:
            return
        if bucket.low < self.low:  # faster than `min`; a chart of many ranks has thousands of buckets
            self.low = bucket.low
        if bucket.high > self.high:
            self.high = bucket.high
        self.count += 1
        # Updated with each value, because the sum of large floats can be infinite.
        self.mean = self.mean * ((self.count - 1) / self.count) + (bucket.low / 2 + bucket.high / 2) / self.count


class _Axis(NamedTuple):
    """Where buckets stand on the axis of x, and in which column. `begin`: seconds since the epoch."""

    by_step: bool
    begin: float
    left: float = 0.0
    width: float = 1.0

    def places(self, buckets: Iterable[Bucket]) -> list[float]:
        """In steps, or in seconds since the first bucket."""
        if self.by_step:
            return [float(bucket.step) for bucket in buckets if bucket.step is not None]
        return [bucket.end - self.begin for bucket in buckets]

    def placed(self, buckets: Sequence[Bucket]) -> Iterator[tuple[int, Bucket]]:
        """The buckets, each with the column that it is drawn in."""
        for place, bucket in zip(self.places(buckets), buckets, strict=True):
            yield round((place - self.left) / self.width), bucket

    def columns_of(self, buckets: Sequence[Bucket]) -> list[tuple[float, _Column]]:
        """The columns of one series that have values, and where they stand."""
        by_index: defaultdict[int, _Column] = defaultdict(_Column)
        for index, bucket in self.placed(buckets):
            by_index[index].add(bucket)
        return [(self.left + index * self.width, column) for index, column in sorted(by_index.items()) if column.count]

    def band_of(self, parts: Sequence[tuple[str, list[Bucket]]]) -> list[tuple[float, _Column]]:
        """The same of many. A series without a value in a column keeps its last one there: a rank that falls silent has not become like
        the others."""
        by_index: defaultdict[int, _Column] = defaultdict(_Column)
        latest: list[dict[int, Bucket]] = []
        for _, buckets in parts:
            latest.append(own := {})
            for index, bucket in self.placed(buckets):
                by_index[index].add(bucket)
                if bucket.low is not None:
                    own[index] = bucket
        filled = sorted(index for index, column in by_index.items() if column.count)
        for own in latest:
            if len(own) == len(filled):
                continue
            last: Bucket | None = None
            for index in filled:
                if index in own:
                    last = own[index]
                elif last is not None:
                    by_index[index].add(last)
        return [(self.left + index * self.width, by_index[index]) for index in filled]


def curves(named: Sequence[tuple[str, Series]], columns: int, look: Look = Look()) -> Curves | None:  # noqa: B008
    """At most twice as many points for each curve as there are columns. `look`: the curves to draw, and their axes. Values on a
    logarithmic axis are returned as their logarithms to base 10. Returns None while there is no finite value."""
    found = [(name, *_standing(series.buckets, repeats=look.by_time)) for name, series in named]
    parts = [(name, buckets) for name, buckets, _ in found]
    every = [bucket for _, buckets in parts for bucket in buckets]
    by_step = not look.by_time and bool(every) and all(bucket.step is not None for bucket in every)
    axis = _Axis(by_step, min((bucket.begin for bucket in every), default=0.0))
    if look.log or (look.begin, look.end) != (0.0, 1.0):
        parts = _looked_at(parts, look, axis)
        every = [bucket for _, buckets in parts for bucket in buckets]
    low = min((bucket.low for bucket in every if bucket.low is not None), default=None)
    high = max((bucket.high for bucket in every if bucket.high is not None), default=None)
    if low is None or high is None:
        return None
    places = axis.places(every)
    left, right = min(places), max(places)
    axis = axis._replace(left=left, width=(right - left) / max(1, columns - 1) or 1.0)
    is_band = len(parts) > look.most
    drawn = [_curve(name, axis.columns_of(buckets)) for name, buckets in parts if not is_band or name == look.chosen]
    drawn += _band(parts, axis) if is_band else []
    smoothing = look.smoothing
    if smoothing is None:
        smoothing = NOISY if any(_is_noisy(curve) for curve in drawn if not curve.is_faint) else 0.0
    if smoothing:
        behind = [drawn[0]._replace(name="values", is_faint=True)] if len(drawn) == 1 else []
        drawn = [curve if curve.is_faint else _smoothed(curve, smoothing) for curve in drawn] + behind
    odd = sorted(set(axis.places(bucket for bucket in every if bucket.odd)))
    restarts = sorted({at for _, _, begun in found for at in axis.places(begun) if left <= at <= right})
    return Curves(drawn, smoothing, odd, restarts, by_step, (left, right), (low, high))


def _band(parts: Sequence[tuple[str, list[Bucket]]], axis: _Axis) -> list[Curve]:
    band = axis.band_of(parts)
    x = [place for place, _ in band]
    return [
        Curve(f"mean of {len(parts)}", x, [column.mean for _, column in band]),
        Curve("range", x, [column.high for _, column in band], is_faint=True),
        Curve("", x, [column.low for _, column in band], is_faint=True),
    ]


def _looked_at(parts: list[tuple[str, list[Bucket]]], look: Look, axis: _Axis) -> list[tuple[str, list[Bucket]]]:
    """The buckets in the part of the run that is drawn, with logarithms where they are asked for."""
    placed = [(name, list(zip(axis.places(buckets), buckets, strict=True))) for name, buckets in parts]
    every = [place for _, pairs in placed for place, _ in pairs]
    first, last = min(every, default=0.0), max(every, default=0.0)
    left, right = first + (last - first) * look.begin, first + (last - first) * look.end
    kept = [(name, [bucket for place, bucket in pairs if left <= place <= right]) for name, pairs in placed]
    return [(name, [_logged(one) for one in buckets]) for name, buckets in kept] if look.log else kept


def _logged(bucket: Bucket) -> Bucket:
    low, high = (math.log10(one) if one is not None and one > 0 else None for one in (bucket.low, bucket.high))
    return msgspec.structs.replace(bucket, low=low if low is not None else high, high=high)


def _smoothed(curve: Curve, smoothing: float) -> Curve:
    """An exponential moving average without the bias of its beginning (Kingma and Ba, 2014, section 3)."""
    values: list[float] = []
    mean = 0.0
    for count, value in enumerate(curve.y, 1):
        mean = smoothing * mean + (1 - smoothing) * value
        values.append(mean / (1 - smoothing**count))
    return curve._replace(y=values)


def _is_noisy(curve: Curve) -> bool:
    """Whether noise hides the trend of a curve. One spike does not: the change that half of the points exceed counts."""
    if len(curve.y) < LEAST_NOISY:
        return False
    change = statistics.median(abs(after / 2 - before / 2) for before, after in pairwise(curve.y))
    trend = _smoothed(curve, NOISY).y
    return change > NOISE * (max(trend) / 2 - min(trend) / 2)


def _standing(buckets: Iterable[Bucket], *, repeats: bool = False) -> tuple[list[Bucket], list[Bucket]]:
    """The buckets of a series without those whose steps were repeated later, and the first bucket after each restart. `repeats`: keeps
    repeated steps."""
    kept: list[Bucket] = []
    begun: list[Bucket] = []
    for bucket in buckets:
        if bucket.step is not None and kept and _is_behind(bucket.step, kept[-1]):
            while kept and not repeats and _is_behind(bucket.step - 1, kept[-1]):
                kept.pop()
            begun = [one for one in begun if repeats or not _is_behind(bucket.step - 1, one)] + [bucket]
        kept.append(bucket)
    return kept, begun


def _is_behind(step: int, bucket: Bucket) -> bool:
    return bucket.step is not None and step < bucket.step


def _curve(name: str, columns: list[tuple[float, _Column]]) -> Curve:
    x: list[float] = []
    y: list[float] = []
    for place, column in columns:
        # Nobody sees whether values fall or rise within a column; a single value is one point.
        values = [column.low] if column.low == column.high else [column.high, column.low]
        x += [place] * len(values)
        y += values
    return Curve(name, x, y)
