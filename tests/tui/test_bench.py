"""The results of a run that measures collectives: the table, the curves, and the keys between them."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.arguments.argument import Argument
from engine.core.errors import ProfileError
from engine.core.metrics.bench import Result
from tests.tui.fake_engine import FakeEngine, FakeRun
from tests.tui.seen import after, showing, text_of, until, until_gone, until_seen
from tui.app import RankdeckApp
from tui.data.form import _check
from tui.text.bench import MEASURES, TABLE, bench_curves, bench_table, curve_names, size_ticks, value_ticks
from tui.text.plot import AXIS
from tui.widgets.bench_pane import BenchPane
from tui.widgets.chart import lines_of

RUN = "bench-7f3a"
SIZES = [4 << power for power in range(0, 24, 3)]


def results(*collectives: str) -> list[Result]:
    """A curve for each, from 100 us to some ms."""
    found = [
        Result(collective=name, dtype="float32", bytes=size, repetitions=100, median_us=100.0 + size / 1000 * (index + 1),
               p95_us=200.0 + size / 500, algbw=size / 1e5, busbw=size / 1e5)
        for index, name in enumerate(collectives)
        for size in SIZES
    ]  # fmt: skip
    barrier = Result(collective="barrier", dtype="float32", bytes=0, repetitions=100, median_us=50.0, p95_us=60.0)
    return [*found, barrier]


@pytest.fixture
def run(engine: FakeEngine) -> FakeRun:
    run = engine.add_run(RUN)
    run.view = msgspec.structs.replace(run.view, program="allreduce")
    return run


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_on_a_narrow_screen_one_key_goes_from_the_table_to_each_curve_and_back(
    engine: FakeEngine, run: FakeRun, ascii_only: bool
):
    run.results = results("all_reduce", "broadcast")
    async with RankdeckApp(engine, open_run=RUN, ascii=ascii_only).run_test(notifications=True, size=(80, 24)) as pilot:
        app = pilot.app
        assert isinstance(app, RankdeckApp)
        text = await until_seen(pilot, "all_reduce, float32", "median", "32 B")
        assert "100 us" in text
        for title in ("latency", "bus bandwidth in GB/s", "algorithm bandwidth in GB/s"):
            text = await after(pilot, "c", f"{title}  ", "all_reduce", "broadcast", "4 B", "MiB")
            assert "median" not in text
            assert text.isascii() or not ascii_only
        await after(pilot, "c", "all_reduce, float32", "median")
        assert max(map(len, text_of(app).splitlines())) <= 80


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_on_a_wide_screen_table_and_curves_stand_beside_each_other(
    engine: FakeEngine, run: FakeRun, ascii_only: bool
):
    run.results = results("all_reduce")
    async with RankdeckApp(engine, open_run=RUN, ascii=ascii_only).run_test(
        notifications=True, size=(120, 40)
    ) as pilot:
        text = await until_seen(pilot, "all_reduce, float32", "median", "latency  ", "100 us", "6 results", "c curves")
        assert text.isascii() or not ascii_only
        await after(pilot, "c", "median", "bus bandwidth in GB/s")


async def test_results_come_as_they_are_measured_and_the_log_is_a_key_away(engine: FakeEngine, run: FakeRun):
    async with showing(RankdeckApp(engine, open_run=RUN), "Nothing has been measured yet.") as pilot:
        run.results = results()
        run.tick(1)
        await until_seen(pilot, "barrier, float32", "50.0 us")
        await after(pilot, "3", "Log: rank 0")
        await until_gone(pilot, "barrier")
        await after(pilot, "6", "barrier, float32")
        await after(pilot, "6", gone="Ranks")
        await until(pilot, lambda: pilot.app.screen.query_one(BenchPane).has_focus, "the results")


def test_the_form_refuses_what_the_recipe_would():
    sizes = Argument(name="sizes", type="str", default="4", help="bytes, such as 4:400M", pattern="[0-9]+[KMG]?")
    _check(sizes, "64K")
    with pytest.raises(ProfileError, match="'4X' is not understood: bytes, such as 4:400M"):
        _check(sizes, "4X")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (80, 12)])
async def test_a_rank_that_invents_collectives_leaves_the_chart_its_room(
    engine: FakeEngine, run: FakeRun, size: tuple[int, int]
):
    run.results = results(*(f"collective_number_{number}" for number in range(60)))
    async with showing(RankdeckApp(engine, open_run=RUN), "collective_number_0", size=size) as pilot:
        await after(pilot, "6 6 c", "collective_number_1", "4 B")


# --- text and curves


def test_the_table_keeps_to_its_cells_and_leaves_a_barrier_without_bandwidth():
    lines = bench_table(results("all_reduce")).plain.splitlines()
    assert lines[:3] == [
        "all_reduce, float32",
        "    size  calls   median      p95    algbw    busbw",
        "     4 B    100   100 us   200 us    0.000    0.000",
    ]
    assert "       -    100  50.0 us  60.0 us        -        -" in lines
    assert max(map(len, lines)) <= TABLE


def test_there_is_a_curve_for_each_collective_that_moves_something():
    found = bench_curves(results("all_reduce", "sendrecv"), "latency")
    assert found is not None
    assert (
        [curve.name for curve in found.curves]
        == curve_names(results("all_reduce", "sendrecv"))
        == ["all_reduce", "sendrecv"]
    )
    assert found.curves[0].x == [2.0 + 3 * index for index in range(len(SIZES))]
    assert found.curves[0].y[0] == pytest.approx(math.log10(100.004))
    assert bench_curves(results(), "latency") is None


def test_types_are_told_apart_where_there_are_several():
    found = results("all_reduce")
    assert curve_names([*found, msgspec.structs.replace(found[0], dtype="int64")]) == [
        "all_reduce float32",
        "all_reduce int64",
    ]


def test_the_bus_of_one_rank_moves_nothing_and_can_be_drawn():
    found = bench_curves([msgspec.structs.replace(one, busbw=0.0) for one in results("all_reduce")], "busbw")
    assert found is not None
    assert found.y_range == (-9.0, -9.0)
    assert value_ticks(*found.y_range, "busbw") == [(-9.0, "1e-09")]


def test_axes_are_marked_at_powers():
    assert size_ticks(2, 26) == [(2, "4 B"), (7, "128 B"), (12, "4 KiB"), (17, "128 KiB"), (22, "4 MiB")]
    assert value_ticks(1.9, 5.2, "latency") == [(2, "100 us"), (3, "1 ms"), (4, "10 ms"), (5, "100 ms")]
    assert value_ticks(-4.5, -0.5, "busbw") == [(-4, "0.0001"), (-3, "0.001"), (-2, "0.01"), (-1, "0.1")]
    assert [label for _, label in value_ticks(2.1, 2.9, "latency")] == ["126 us", "794 us"]


@given(ends=st.tuples(st.floats(0, 49), st.floats(0, 49)), values=st.tuples(st.floats(-9, 9), st.floats(-9, 9)))
def test_there_are_few_marks_and_their_labels_keep_to_the_axis(ends: tuple[float, float], values: tuple[float, float]):
    marks = size_ticks(*sorted(ends))
    assert 1 <= len(marks) <= 5
    for measure in MEASURES:
        low, high = sorted(values)
        marks = value_ticks(low, high, measure)
        assert 1 <= len(marks) <= 5
        assert all(len(label) <= AXIS + 1 for _, label in marks)


def test_a_legend_takes_as_many_lines_as_it_needs():
    assert lines_of([10, 10, 10], 30) == [0, 0, 0]
    assert lines_of([10, 10, 11], 30) == [0, 0, 1]
    assert lines_of([40, 10, 10], 30) == [0, 1, 1]
