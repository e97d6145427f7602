"""One curve for each run, so that runs can be drawn over each other: the mean over ranks, from the run's own beginning."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.core.metrics.series import Bucket, Series, SeriesDump


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
    values = [
        bucket.low / 2 + bucket.high / 2 for bucket in buckets if bucket.low is not None and bucket.high is not None
    ]
    mean = sum(value / len(values) for value in values) if values else None
    end = max(bucket.end for bucket in buckets) - begin
    odd = sum(bucket.odd for bucket in buckets)
    return Bucket(end, end, buckets[0].step, mean, mean, mean, max(1, len(buckets)), odd)
