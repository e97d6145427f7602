"""A curve of any length stays small, and neither a spike nor a NaN is lost."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.metrics.series import (
    CAPACITY,
    RECENT,
    RESOURCE_CAPACITY,
    Bucket,
    Point,
    Series,
    SeriesDump,
    SeriesSet,
    final_values,
)

VALUES = st.lists(st.floats() | st.floats(-10, 10), max_size=3 * CAPACITY)


def series_of(values: list[float]) -> Series:
    series = Series(0, "loss")
    for step, value in enumerate(values):
        series.append(float(step), step, value)
    return series


@pytest.mark.parametrize("at", [0, 1, CAPACITY, 77_777, 99_999])
def test_a_spike_stays_visible_in_a_long_run(at: int) -> None:
    values = [1.0] * 100_000
    values[at] = 50.0
    highs = [bucket.high for bucket in series_of(values).buckets]
    assert highs.count(50.0) == 1
    assert set(highs) == {1.0, 50.0}


@given(VALUES)
@settings(deadline=None)
def test_the_extremes_are_those_of_all_finite_values(values: list[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    buckets = series_of(values).buckets
    assert min((bucket.low for bucket in buckets if bucket.low is not None), default=None) == min(finite, default=None)
    assert max((one.high for one in buckets if one.high is not None), default=None) == max(finite, default=None)


@given(VALUES)
@settings(deadline=None)
def test_every_point_is_counted_once_and_those_that_are_not_finite_too(values: list[float]) -> None:
    buckets = series_of(values).buckets
    assert sum(bucket.count for bucket in buckets) == len(values)
    assert sum(bucket.odd for bucket in buckets) == sum(not math.isfinite(value) for value in values)


@given(st.integers(0, 5 * CAPACITY))
@settings(deadline=None)
def test_buckets_are_bounded_ordered_and_equally_full(count: int) -> None:
    series = series_of([0.0] * count)
    assert len(series.buckets) <= CAPACITY
    edges = [edge for bucket in series.buckets for edge in (bucket.begin, bucket.end)]
    assert edges == sorted(edges)
    assert all(bucket.count == series.per_bucket for bucket in series.buckets[:-1])
    assert count == 0 or 1 <= series.buckets[-1].count <= series.per_bucket


@pytest.mark.slow
def test_a_million_points_fit_into_the_capacity() -> None:
    series = Series(0, "loss")
    for step in range(1_000_000):
        series.append(step, step, 1.0)
    assert CAPACITY // 2 <= len(series.buckets) <= CAPACITY
    assert (series.buckets[0].begin, series.buckets[-1].end) == (0, 999_999)
    assert series.buckets[-1].step == 999_999


def test_curves_of_resources_are_coarser_and_no_result() -> None:
    series = Series(0, "process.cpu")
    for second in range(10_000):
        series.append(second, None, 100.0)
    assert RESOURCE_CAPACITY // 2 <= len(series.buckets) <= RESOURCE_CAPACITY < CAPACITY
    assert final_values([series.dump(), series_of([0.5]).dump()]) == {"loss": 0.5}


@pytest.mark.parametrize("stored", [CAPACITY, CAPACITY - 1])
def test_a_curve_that_was_stored_with_more_buckets_goes_on(stored: int) -> None:
    dump = msgspec.structs.replace(series_of([0.0] * stored).dump(), key="process.cpu")
    series = Series.load(dump)
    for second in range(1000):
        series.append(second, None, 1.0)
    assert len(series.buckets) <= RESOURCE_CAPACITY
    assert sum(bucket.count for bucket in series.buckets) == stored + 1000


def test_a_bucket_without_a_finite_value_has_no_extremes_and_is_marked() -> None:
    (bucket,) = series_of([math.nan]).buckets
    assert (bucket.low, bucket.high, bucket.last, bucket.count, bucket.odd) == (None, None, None, 1, 1)


def test_a_nan_never_hides_its_neighbours() -> None:
    series = series_of([3.0, math.nan, math.inf, 1.0] * CAPACITY)
    assert all((bucket.low, bucket.high) == (1.0, 3.0) for bucket in series.buckets)
    assert all(bucket.odd * 2 == bucket.count for bucket in series.buckets)


def test_a_point_without_a_step_keeps_the_step_before_it() -> None:
    series = Series(0, "loss")
    for at in range(CAPACITY + 2):
        series.append(at, 7 if at == 0 else None, 1.0)
    assert series.buckets[0].step == 7


def test_the_newest_points_are_kept_one_by_one() -> None:
    series = series_of([float(value) for value in range(1000)])
    assert [value for _, _, value in series.recent] == [float(value) for value in range(1000 - RECENT, 1000)]
    assert series.last == 999.0
    assert Series(0, "loss").last is None


def test_the_last_value_may_be_nan() -> None:
    last = series_of([1.0, math.nan]).last
    assert last is not None
    assert math.isnan(last)


# --- as data ---------------------------------------------------------------------------------------------------------


@given(VALUES)
@settings(deadline=None)
def test_a_dump_survives_json_and_loads_as_the_same_series(values: list[float]) -> None:
    dump = series_of(values).dump()
    travelled = msgspec.json.decode(msgspec.json.encode(dump), type=SeriesDump)
    assert travelled == dump
    assert Series.load(travelled).dump() == dump


@given(VALUES, VALUES)
@settings(deadline=None)
def test_a_loaded_series_goes_on_as_if_it_had_never_been_stored(before: list[float], after: list[float]) -> None:
    loaded = Series.load(series_of(before).dump())
    for step, value in enumerate(after, len(before)):
        loaded.append(float(step), step, value)
    never_stored = series_of(before + after)
    assert loaded.dump() == never_stored.dump()
    assert (loaded.low, loaded.high) == (never_stored.low, never_stored.high)


def test_a_loaded_series_shares_nothing_with_its_dump() -> None:
    dump = series_of([1.0] * (CAPACITY + 1)).dump()
    last = msgspec.structs.replace(dump.buckets[-1])
    Series.load(dump).append(999.0, 999, 5.0)
    assert dump.buckets[-1] == last


def test_a_dump_is_not_changed_by_later_points() -> None:
    series = series_of([1.0] * (CAPACITY + 1))
    dump = series.dump()
    stored = msgspec.json.encode(dump)
    series.append(999.0, 999, 5.0)
    assert msgspec.json.encode(dump) == stored


def test_a_bucket_travels_as_a_short_array() -> None:
    assert msgspec.json.encode(Bucket(1.0, 2.0, 3, 4.0, 5.0, 6.0, 7, 0)) == b"[1.0,2.0,3,4.0,5.0,6.0,7,0]"


# --- all series of a run ---------------------------------------------------------------------------------------------


def test_series_are_kept_apart_by_rank_and_key() -> None:
    series = SeriesSet()
    series.append(Point(0, "loss", 1.0, 1, 2.0))
    series.append(Point(1, "loss", 1.0, 1, 3.0))
    series.append(Point(1, "it/s", 1.0, 1, None))
    assert series.keys() == ["it/s", "loss"]
    zero, one = series.get(0, "loss"), series.get(1, "loss")
    assert zero is not None
    assert one is not None
    assert (zero.last, one.last) == (2.0, 3.0)
    assert series.get(0, "it/s") is None


def test_a_point_without_a_value_counts_as_not_finite() -> None:
    series = SeriesSet()
    series.append(Point(0, "loss", 1.0, 1, None))
    (dump,) = series.dump()
    assert (dump.buckets[0].odd, dump.recent) == (1, [(1.0, 1, None)])


@given(
    st.lists(st.builds(Point, st.integers(0, 2), st.sampled_from(["a", "b"]), st.floats(0, 9), st.none(), st.floats()))
)
@settings(deadline=None)
def test_all_series_load_from_their_dump(points: list[Point]) -> None:
    series = SeriesSet()
    for point in points:
        series.append(point)
    assert SeriesSet(series.dump()).dump() == series.dump()
