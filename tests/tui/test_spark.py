"""Small curves over a whole run, and how charts are drawn."""

import math
import random

from engine.core.metrics.series import Series
from tests.tui.table_app import TableApp, row
from tui.data.curves import Look, curves
from tui.data.model import Row
from tui.text.sparkline import scale_of, spark_values, sparkline
from tui.widgets.run_charts import look_words, metrics_of


def series(*values: float, rank: int = 0) -> Series:
    made = Series(rank, "loss")
    for step, value in enumerate(values):
        made.append(1000.0 + step, step, value)
    return made


def test_a_spike_of_a_long_run_stays_visible_in_a_few_cells():
    values = [1.0] * 3000
    values[1500] = 9.0
    drawn = spark_values(series(*values), 8)
    assert len(drawn) == 8
    assert drawn.count(9.0) == 1


def test_noise_does_not_hide_the_course_of_a_loss():
    values = [4.0 - step / 300 + 0.3 * (-1) ** step for step in range(900)]
    drawn = [value for value in spark_values(series(*values), 6) if value is not None]
    assert drawn == sorted(drawn, reverse=True)
    assert len(drawn) == 6


def test_the_steep_begin_of_a_loss_stays_visible():
    drawn = spark_values(series(*(1.0 + 8 * 0.9**step for step in range(600))), 6)
    assert drawn[0] == 9.0


def test_a_value_that_is_not_finite_marks_its_cell_for_the_whole_run():
    values = [1.0] * 1000
    values[10] = math.nan
    assert spark_values(series(*values), 10)[0] is None


def test_a_window_shows_only_what_is_newer():
    assert spark_values(series(*range(60)), 40, since=1055.0) == [55, 56, 57, 58, 59]


def test_all_ranks_share_one_scale():
    assert scale_of([series(1, 2), None, series(0, 3, rank=1)]) == (0, 3)
    assert scale_of([None]) is None
    assert sparkline([1, 2], 2, scale=(0, 8)) == "▂▃"
    assert sparkline([-1, 9], 2, scale=(0, 8)) == "▁█"


async def test_the_table_draws_on_one_scale_and_on_a_key_on_its_own():
    rows = [Row(row(rank).view, None, series(*level, rank=rank)) for rank, level in enumerate([(1, 2), (7, 8)])]
    app = TableApp(rows)
    async with app.run_test(size=(100, 8)) as pilot:
        await pilot.pause()
        assert "▁▂" in app.table.render_line(1).text
        assert "▇█" in app.table.render_line(2).text
        await pilot.press("W")
        assert "▁█" in app.table.render_line(1).text
        assert str(app.table.border_subtitle) == "curves: whole run, own scales"
        await pilot.press("W", "w")
        assert str(app.table.border_subtitle) == "curves: 10 min"


def test_a_chart_draws_a_part_by_time_smoothed_and_as_logarithms():
    named = [("r0", series(*(10.0**step for step in range(-1, 9))))]
    found = curves(named, 40, Look(log=True))
    assert found is not None
    assert (found.y_range, found.by_step) == ((-1.0, 8.0), True)
    found = curves(named, 40, Look(begin=0.5, end=1.0, by_time=True))
    assert found is not None
    assert (found.x_range, found.by_step) == ((5.0, 9.0), False)
    found = curves([("r0", series(0, 10, 0, 10))], 40, Look(smoothing=0.9))
    assert found is not None
    assert max(found.curves[0].y) < 6
    assert curves([("r0", series(-1.0))], 40, Look(log=True)) is None


def test_the_chosen_rank_is_drawn_above_the_band_and_over_time_repeated_steps_are_kept():
    found = curves([(f"r{rank}", series(rank, rank + 1, rank=rank)) for rank in range(6)], 40, Look(chosen="r3"))
    assert found is not None
    assert [curve.name for curve in found.curves] == ["r3", "mean of 6", "range", ""]
    again = series(5, 4, 3)
    for step, value in enumerate([5, 2, 1]):
        again.append(2000.0 + step, step, value)
    by_step, by_time = curves([("r0", again)], 40), curves([("r0", again)], 40, Look(by_time=True))
    assert by_step is not None
    assert by_time is not None
    assert (len(by_step.curves[0].x), len(by_time.restarts)) == (3, 1)


def test_every_metric_has_its_page():
    assert metrics_of(["lr", "loss", "val_loss", "throughput"]) == ["loss", "throughput", "val_loss", "lr"]
    assert metrics_of(["gpu.memory", "process.cpu", "zeta", "loss"]) == ["loss", "zeta", "process.cpu", "gpu.memory"]
    assert metrics_of([]) == ["loss", "throughput"]
    assert look_words(Look(log=True, smoothing=0.6, begin=0.5)) == ["log", "smoothed 0.6", "50%-100% of the run"]
    assert [look_words(Look(smoothing=one)) for one in (None, 0.0)] == [[], ["not smoothed"]]


def test_a_curve_is_smoothed_where_noise_hides_its_trend_and_its_values_stay_behind_it():
    noise = random.Random(7)
    noisy = [5 + noise.gauss(0, 1) for _ in range(300)]
    spike = [5.0] * 150 + [50.0] + [5.0] * 149
    falling = [500 / (10 + step) + noise.gauss(0, 1) for step in range(300)]
    for values, smoothing in ((noisy, 0.9), (spike, 0.0), (falling, 0.0), ([1.0] * 300, 0.0), (noisy[:9], 0.0)):
        found = curves([("r0", series(*values))], 80, Look(smoothing=None))
        assert found is not None
        assert found.smoothing == smoothing
        assert [curve.name for curve in found.curves if curve.is_faint] == ["values"] * bool(smoothing)
    found = curves([(f"r{rank}", series(*noisy)) for rank in range(2)], 80, Look(most=1, smoothing=None))
    assert found is not None
    assert [(curve.name, curve.is_faint) for curve in found.curves] == [
        ("mean of 2", False),
        ("range", True),
        ("", True),
    ]
