"""Stores a metric over time in bounded memory, so that a spike stays visible forever.

Each bucket holds the same number of points, with their lowest and highest value. When all buckets are full, neighbours are merged and
later buckets take twice as many points, so the whole curve has the same resolution, and `CAPACITY` buckets hold a run of any length.
Non-finite values do not change the extremes; they are counted, so that a chart can show where a loss diverged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from engine.core.metrics.resources import RESOURCES

CAPACITY = 256  # buckets of one series: twice the columns of a wide chart, so that merging is not visible
RESOURCE_CAPACITY = 64  # the same for resources that ranks use: they come every few seconds in every run

RECENT = 64  # newest points that are kept individually: the width of the widest sparkline


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One value of one metric of one rank. `at`: seconds since the epoch; `step`: the rank's step, or None; `value`: None stands for NaN
    and infinities, which JSON lacks."""

    rank: int
    key: str
    at: float
    step: int | None
    value: float | None


def point(rank: int, key: str, at: float, step: int | None, value: float) -> Point:
    """A point of any float."""
    return Point(rank, key, at, step, value if math.isfinite(value) else None)


class Bucket(msgspec.Struct, array_like=True):
    """Consecutive points. `low` and `high` are None if no value was finite; `odd` counts non-finite values."""

    begin: float
    end: float
    step: int | None
    low: float | None
    high: float | None
    last: float | None
    count: int
    odd: int


class SeriesDump(msgspec.Struct, frozen=True, kw_only=True):
    """A series as it is sent and stored."""

    rank: int
    key: str
    per_bucket: int
    buckets: list[Bucket]
    recent: list[tuple[float, int | None, float | None]]
    """(at, step, value) of the newest points; value None: not finite."""


class Series:
    """One metric of one rank."""

    def __init__(self, rank: int, key: str) -> None:
        self.rank = rank
        self.key = key
        self.per_bucket = 1
        self._capacity = RESOURCE_CAPACITY if key in RESOURCES else CAPACITY
        self.buckets: list[Bucket] = []
        self.recent: deque[tuple[float, int | None, float]] = deque(maxlen=RECENT)
        self.low, self.high = math.inf, -math.inf  # the extremes of all finite values; infinite if there is none

    def append(self, at: float, step: int | None, value: float) -> None:
        """Adds a point, of any float and of a step or None, at seconds since the epoch. Costs constant time on average."""
        self.recent.append((at, step, value))
        finite = math.isfinite(value)
        if finite:
            self.low, self.high = min(self.low, value), max(self.high, value)
        if not self.buckets or self.buckets[-1].count >= self.per_bucket:
            if len(self.buckets) >= self._capacity:  # more, if another version has stored them
                pairs = (self.buckets[index : index + 2] for index in range(0, len(self.buckets), 2))
                self.buckets = [_merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
                self.per_bucket *= 2
            one = value if finite else None
            self.buckets.append(Bucket(at, at, step, one, one, one, 1, int(not finite)))
            return
        bucket = self.buckets[-1]
        bucket.end = at
        bucket.count += 1
        if step is not None:
            bucket.step = step
        if finite:
            bucket.low = value if bucket.low is None else min(bucket.low, value)
            bucket.high = value if bucket.high is None else max(bucket.high, value)
            bucket.last = value
        else:
            bucket.odd += 1

    @property
    def last(self) -> float | None:
        return self.recent[-1][2] if self.recent else None

    def dump(self) -> SeriesDump:
        buckets = [*self.buckets[:-1], *(msgspec.structs.replace(bucket) for bucket in self.buckets[-1:])]
        recent = [(at, step, value if math.isfinite(value) else None) for at, step, value in self.recent]
        return SeriesDump(rank=self.rank, key=self.key, per_bucket=self.per_bucket, buckets=buckets, recent=recent)

    @classmethod
    def load(cls, dump: SeriesDump) -> Series:
        """The series that `dump` was made from."""
        series = cls(dump.rank, dump.key)
        series.per_bucket = dump.per_bucket
        series.buckets = [msgspec.structs.replace(bucket) for bucket in dump.buckets]
        series.recent.extend((at, step, math.nan if value is None else value) for at, step, value in dump.recent)
        series.low = min((bucket.low for bucket in series.buckets if bucket.low is not None), default=math.inf)
        series.high = max((bucket.high for bucket in series.buckets if bucket.high is not None), default=-math.inf)
        return series


def _merged(left: Bucket, right: Bucket) -> Bucket:
    low = min((bucket.low for bucket in (left, right) if bucket.low is not None), default=None)
    high = max((bucket.high for bucket in (left, right) if bucket.high is not None), default=None)
    step = right.step if right.step is not None else left.step
    last = right.last if right.last is not None else left.last
    return Bucket(left.begin, right.end, step, low, high, last, left.count + right.count, left.odd + right.odd)


class SeriesSet:
    """All series of a run, by rank and key."""

    def __init__(self, dumps: Iterable[SeriesDump] = ()) -> None:
        self._series = {(dump.rank, dump.key): Series.load(dump) for dump in dumps}

    def append(self, point: Point) -> None:
        """Adds a point to its series, which is created with its first point."""
        series = self._series.get((point.rank, point.key))
        if series is None:
            series = self._series[point.rank, point.key] = Series(point.rank, point.key)
        series.append(point.at, point.step, math.nan if point.value is None else point.value)

    def get(self, rank: int, key: str) -> Series | None:
        """The series of one rank, or None if it never reported that metric."""
        return self._series.get((rank, key))

    def keys(self) -> list[str]:
        """Names of all metrics that any rank reported, sorted."""
        return sorted({key for _, key in self._series})

    def dump(self) -> list[SeriesDump]:
        return [series.dump() for series in self._series.values()]

    def newest(self) -> list[Point]:
        """The last point of each series."""
        return [point(one.rank, one.key, *one.recent[-1]) for one in self._series.values() if one.recent]


def final_values(dumps: Iterable[SeriesDump]) -> dict[str, float | None]:
    """The newest value of each metric, the mean over ranks. None: a rank's newest value is not finite, or it has none."""
    found: dict[str, list[float | None]] = {}
    for dump in dumps:
        if dump.key in RESOURCES:
            continue
        found.setdefault(dump.key, []).append(dump.recent[-1][2] if dump.recent else None)
    return {
        key: None if None in values else sum(value for value in values if value is not None) / len(values)
        for key, values in sorted(found.items())
    }


def overlay(dumps: Sequence[SeriesDump], metric: str, begin: float) -> Series | None:
    """The curve of a metric as the mean over ranks, in seconds since `begin`; None if no rank has the metric."""
    own = [dump for dump in dumps if dump.key == metric]
    if not own:
        return None
    by_step = all(bucket.step is not None for dump in own for bucket in dump.buckets)
    places: dict[float, list[Bucket]] = {}
    for dump in own:
        for bucket in _last_values(dump.buckets):
            place = float(bucket.step) if by_step and bucket.step is not None else round(bucket.end - begin)
            places.setdefault(place, []).append(bucket)
    series = Series(0, metric)
    series.per_bucket = max(dump.per_bucket for dump in own)
    series.buckets = [_mean(places[place], begin) for place in sorted(places)]
    last = series.buckets[-1] if series.buckets else None
    if last is not None:
        series.recent.append((last.end, last.step, math.nan if last.last is None else last.last))
    return series


def _last_values(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Without those whose steps a later attempt repeated."""
    kept: list[Bucket] = []
    for bucket in buckets:
        while kept and bucket.step is not None and (before := kept[-1].step) is not None and before >= bucket.step:
            kept.pop()
        kept.append(bucket)
    return kept


def _mean(buckets: Sequence[Bucket], begin: float) -> Bucket:
    values = [one.low / 2 + one.high / 2 for one in buckets if one.low is not None and one.high is not None]
    mean = sum(value / len(values) for value in values) if values else None
    end = max(bucket.end for bucket in buckets) - begin
    odd = sum(bucket.odd for bucket in buckets)
    return Bucket(end, end, buckets[0].step, mean, mean, mean, max(1, len(buckets)), odd)
