"""Curves: what many points come to on a few columns, and when they are drawn."""

import math
import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen

from engine.core.metrics.series import Series
from tests.tui.hostile import CORPUS
from tests.tui.waiting import SIZES, lines, until
from tui.data.curves import Look, curves
from tui.text import plot
from tui.theme import CSS as STYLES
from tui.widgets import chart
from tui.widgets.chart import Chart


def series(values: list[float], *, rank: int = 0, steps: bool = True) -> Series:
    made = Series(rank, "loss")
    for index, value in enumerate(values):
        made.append(1000.0 + index, index if steps else None, value)
    return made


FALLING = [3 * math.exp(-index / 300) for index in range(1000)]


class ChartApp(App[None]):
    CSS_PATH = STYLES

    def __init__(self, named: list[tuple[str, Series]], *, ascii_only: bool = False) -> None:
        super().__init__()
        self.chart = Chart(ascii=ascii_only)
        self.named = named

    def compose(self) -> ComposeResult:
        yield self.chart

    def on_mount(self) -> None:
        self.chart.set_series("loss", self.named)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that draw a picture from now on, one for each."""
    threads: list[threading.Thread] = []
    real = plot.picture

    def picture(request: Any) -> Any:
        threads.append(threading.current_thread())
        return real(request)

    monkeypatch.setattr(chart, "picture", picture)
    return threads


async def drawn(pilot: Pilot[Any], widget: Chart, text: str = "┤") -> list[str]:
    await until(pilot, lambda: any(text in line for line in lines(widget)), f"{text!r}")
    return lines(widget)


async def test_a_falling_curve_goes_from_the_upper_left_to_the_lower_right():
    app = ChartApp([("rank 0", series(FALLING))])
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart)
        assert shown[0] == "loss  ⣤ rank 0"
        assert [
            line.partition("┤")[0].strip() for line in shown if "┤" in line
        ] == "3.00 2.50 2.00 1.50 1.00 0.500".split()
        assert shown[1][8:20].strip()
        assert not shown[1][30:].strip()
        assert shown[9][50:].strip()
        assert shown[-1].split() == ["200", "400", "600", "800"]


async def test_ascii_draws_nothing_else():
    app = ChartApp([("a", series(FALLING)), ("b", series([*FALLING, math.nan]))], ascii_only=True)
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart, "|")
        assert all(line.isascii() for line in shown)
        assert shown[0] == "loss  * a  + b"


async def test_curves_differ_in_more_than_their_colour():
    app = ChartApp([(str(rank), series([rank, rank + 1.0], rank=rank)) for rank in range(4)])
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart)
        assert shown[0] == "loss  ● 0  ▲ 1  ■ 2  ◆ 3"
        assert set("●▲■◆") <= set("".join(shown[1:]))


async def test_many_ranks_are_one_band():
    app = ChartApp([(str(rank), series([value + rank for value in FALLING])) for rank in range(16)])
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart)
        assert shown[0] == "loss  ⣤ mean of 16  ⣤ range"


@pytest.mark.parametrize(("width", "said"), [(46, ", smoothed 0.9"), (36, " ~0.9"), (28, "")])
async def test_all_names_of_a_legend_are_there_beside_the_words_about_the_smoothing(width: int, said: str):
    noise = random.Random(7)
    app = ChartApp([("the rank", series([5 + noise.gauss(0, 1) for _ in range(300)]))])
    app.chart.look = Look(smoothing=None)
    async with app.run_test(size=(width, 12)) as pilot:
        assert (await drawn(pilot, app.chart))[0].rstrip() == f"loss{said}  ⣤ the rank  ⣤ values"


async def test_trap_6_a_loss_that_diverged_is_marked_and_no_error():
    app = ChartApp([("r", series([*FALLING, *[math.nan] * 200, math.inf]))])
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart)
        assert "×" in shown[1][50:]  # noqa: RUF001


@pytest.mark.parametrize("values", [[], [math.nan, math.inf], [math.nan]])
async def test_no_values_are_said_to_be_none(values):
    app = ChartApp([("r", series(values))] if values else [])
    async with app.run_test(size=(60, 12)) as pilot:
        await pilot.pause()
        assert lines(app.chart)[0].startswith("loss  ")
        assert "┤" not in "".join(lines(app.chart))


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 5e-324, 1e-300, 1e300, -1.7e308, 1.7e308])
async def test_a_constant_curve_and_the_largest_values_are_drawn(value):
    app = ChartApp([("r", series([value, value, value / 2 if abs(value) > 1e100 else value]))])
    async with app.run_test(size=(60, 12)) as pilot:
        await drawn(pilot, app.chart)


def test_values_that_are_close_together_have_labels_that_differ():
    picture = plot.picture(plot.Request((("r", series([2.43568, 2.43571])),), 60, 11, True, False))
    assert picture is not None
    labels = [line.partition("┤")[0].strip() for line, *_ in picture.lines if "┤" in line]
    assert len(labels) == len(set(labels)) > 2


def test_what_is_always_zero_has_no_values_below_zero_on_its_axis():
    picture = plot.picture(plot.Request((("r", series([0.0, 0.0, 0.0])),), 60, 11, True, False))
    assert picture is not None
    labels = [float(line.partition("┤")[0]) for line, *_ in picture.lines if "┤" in line]
    assert (min(labels), max(labels)) == (0, 1)


def test_the_largest_span_is_drawn():
    picture = plot.picture(plot.Request((("r", series([-1.7e308, 0.0, 1.7e308])),), 60, 11, True, False))
    assert picture is not None
    assert [line.partition("┤")[0].strip() for line, *_ in picture.lines if "┤" in line] == ["1e+308", "0", "-1e+308"]


async def test_without_steps_the_axis_is_time():
    app = ChartApp([("r", series(FALLING, steps=False))])
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart)
        assert shown[-1].split()[-1] == "16:39"


async def test_values_that_arrive_are_drawn_and_nothing_is_drawn_twice(monkeypatch):
    monkeypatch.setattr(chart, "EVERY", 0.05)
    monkeypatch.setattr(chart, "SHARE", math.inf)
    pictures = watched(monkeypatch)
    grows = series(FALLING)
    app = ChartApp([("r", grows)])
    async with app.run_test(size=(60, 12)) as pilot:
        await drawn(pilot, app.chart)
        before = len(pictures)
        for _ in range(5):
            app.chart._due_at = -math.inf
            app.chart.set_series("loss", [("r", grows)])
            await app.workers.wait_for_complete()
            await pilot.pause()
        assert len(pictures) == before
        grows.append(2000.0, 1000, 100.0)
        await until(
            pilot,
            lambda: " 100┤" in lines(app.chart)[1],
            "the new value",
            lambda: app.chart.set_series("loss", app.named),
        )


@pytest.mark.parametrize("hidden", ["by its style", "by another screen"])
async def test_nothing_is_drawn_for_a_chart_that_cannot_be_seen(monkeypatch, hidden):
    monkeypatch.setattr(chart, "EVERY", 0.05)
    monkeypatch.setattr(chart, "SHARE", math.inf)
    pictures = watched(monkeypatch)
    app = ChartApp([])
    async with app.run_test(size=(60, 12)) as pilot:
        if hidden == "by its style":
            app.chart.display = False
        else:
            await app.push_screen(Screen())
        await until(pilot, lambda: not app.chart._is_seen, "the chart's absence")
        await app.workers.wait_for_complete()
        pictures.clear()
        app.chart.set_series("loss", [("r", series(FALLING))])
        await app.workers.wait_for_complete()
        assert pictures == []
        if hidden == "by its style":
            app.chart.display = True
        else:
            app.pop_screen()
        await until(pilot, lambda: "┤" in "".join(lines(app.chart)), "the curve", app.chart._draw_if_due)


async def test_the_loop_does_not_draw(monkeypatch):
    threads = watched(monkeypatch)
    app = ChartApp([("r", series(FALLING))])
    async with app.run_test(size=(60, 12)) as pilot:
        await drawn(pilot, app.chart)
        assert threads
        assert threading.main_thread() not in threads


def test_plotext_is_used_by_one_thread_at_a_time(monkeypatch):
    locked: list[bool] = []
    real = plot._plotted

    def plotted(*arguments: Any) -> str:
        locked.append(plot._PLOTEXT.locked())
        return real(*arguments)

    monkeypatch.setattr(plot, "_plotted", plotted)
    plot.picture(plot.Request((("r", series(FALLING)),), 60, 11, True, False))
    assert locked == [True]


async def test_two_charts_at_once_do_not_draw_into_each_other():
    class TwoApp(App[None]):
        CSS_PATH = STYLES
        CSS = "Chart { height: 12; }"

        def compose(self) -> ComposeResult:
            yield Chart(id="a")
            yield Chart(id="b")

    app = TwoApp()
    async with app.run_test(size=(60, 24)) as pilot:
        first, second = app.query_one("#a", Chart), app.query_one("#b", Chart)
        first.set_series("a", [("r", series([1.0, 2.0]))])
        second.set_series("b", [("r", series([5.0, 9.0]))])
        assert (await drawn(pilot, first))[1].startswith("   2.00┤")
        assert (await drawn(pilot, second))[1].startswith("   9.00┤")


async def test_trap_7_names_are_never_markup_nor_a_control_sequence():
    app = ChartApp(
        [(data.decode("utf-8", "surrogateescape")[:200], series(FALLING)) for data in list(CORPUS.values())[3:7]]
    )
    async with app.run_test(size=(120, 12)) as pilot:
        for line in await drawn(pilot, app.chart):
            assert not any(ord(character) < 32 or 0x7F <= ord(character) <= 0x9F for character in line)


@pytest.mark.parametrize("size", SIZES)
async def test_any_size_is_drawn(size):
    app = ChartApp([("r", series(FALLING))])
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.resize_terminal(60, 15)
        await drawn(pilot, app.chart)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        lines(app.chart)


def ink(widget: Chart) -> str | None:
    """Colour of the first curve in the legend."""
    style = widget.render_line(0)._segments[2].style
    return style.color.name if style and style.color else None


async def test_light_themes_have_their_own_colours():
    app = ChartApp([("r", series(FALLING))])
    async with app.run_test(size=(60, 12)) as pilot:
        await drawn(pilot, app.chart)
        dark = app.chart.render_line(1)
        app.theme = "textual-light"
        await until(pilot, lambda: ink(app.chart) == "rgb(0,114,178)", "blue")
        assert app.chart.render_line(1) != dark


def test_a_curve_has_at_most_two_points_for_a_column_and_keeps_its_spike():
    values = [1.0] * 5000
    values[2345] = 99.0
    found = curves([("r", series(values))], 50)
    assert found is not None
    assert len(found.curves[0].x) <= 100
    assert max(found.curves[0].y) == 99.0
    assert found.y_range == (1.0, 99.0)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_straggler_that_falls_silent_stays_the_lowest(by_time: bool):
    ranks = [(f"r{rank}", series([10.0 + rank] * 100, rank=rank)) for rank in range(7)]
    slow = series([2.0] * 30, rank=7)
    found = curves([*ranks, ("r7", slow)], 50, Look(by_time=by_time))
    assert found is not None
    mean, highest, lowest = found.curves
    assert lowest.x[-1] == pytest.approx(99)
    assert set(lowest.y) == {2.0}
    assert set(highest.y) == {16.0}
    assert max(mean.y) < 13.0  # that of the others


def test_a_straggler_that_reports_seldom_does_not_make_the_lowest_jump():
    slow = Series(7, "loss")
    for index in range(0, 100, 10):
        slow.append(1000.0 + index, index, 2.0)
    found = curves([*((f"r{rank}", series([10.0] * 100, rank=rank)) for rank in range(7)), ("r7", slow)], 100)
    assert found is not None
    assert set(found.curves[2].y) == {2.0}


@given(st.lists(st.lists(st.floats(), max_size=40), max_size=7), st.integers(min_value=1, max_value=60))
def test_any_values_come_to_finite_points(ranks, columns):
    found = curves([(str(rank), series(values, rank=rank)) for rank, values in enumerate(ranks)], columns)
    finite = [value for values in ranks for value in values if math.isfinite(value)]
    assert (found is None) == (not finite)
    if found is not None:
        for curve in found.curves:
            assert len(curve.x) == len(curve.y) <= 2 * columns + 2
            assert all(map(math.isfinite, curve.y))
            assert all(min(finite) <= value <= max(finite) for value in curve.y) or curve.name.startswith("mean of")


@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_any_values_are_drawn(values):
    for ascii_only in (True, False):
        plot.picture(plot.Request((("r", series(values)),), 40, 8, True, ascii_only))


# --- restarts --------------------------------------------------------------------------------------------------------


def restarted(*attempts: tuple[range, float]) -> Series:
    """A series of several attempts, each with one value at all of its steps."""
    made = Series(0, "loss")
    for number, (steps, value) in enumerate(attempts):
        for step in steps:
            made.append(1000.0 * number + step, step, value)
    return made


def test_steps_that_are_done_again_count_as_they_came_out_last_and_the_place_is_marked():
    found = curves([("r0", restarted((range(81), 3.0), (range(50, 66), 1.0)))], 80)
    assert found is not None
    assert found.restarts == [50.0]
    assert found.x_range == (0.0, 65.0)
    (curve,) = found.curves
    assert curve.x == sorted(curve.x)
    assert [value for place, value in zip(curve.x, curve.y, strict=True) if place >= 50] == [1.0] * 16


def test_a_restart_that_goes_back_before_an_earlier_one_takes_its_mark():
    found = curves([("r0", restarted((range(81), 3.0), (range(50, 66), 2.0), (range(20, 30), 1.0)))], 80)
    assert found is not None
    assert (found.restarts, found.x_range) == ([20.0], (0.0, 29.0))


def test_a_run_without_a_restart_has_no_mark():
    found = curves([("r0", series(FALLING))], 80)
    assert found is not None
    assert found.restarts == []


@pytest.mark.parametrize(("ascii_only", "mark"), [(False, "┊"), (True, ":")])
async def test_the_place_of_a_restart_is_a_dotted_line(ascii_only: bool, mark: str):
    app = ChartApp([("r0", restarted((range(81), 3.0), (range(50, 66), 1.0)))], ascii_only=ascii_only)
    async with app.run_test(size=(60, 12)) as pilot:
        shown = await drawn(pilot, app.chart, mark)
        columns = {line.index(mark) for line in shown if mark in line}
        assert len(columns) == 1
        assert sum(mark in line for line in shown) >= 3


def test_a_slow_line_gets_fewer_drawings():
    assert Chart().every < 1.0 <= Chart(slow=True).every
