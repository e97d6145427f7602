"""The fold of a run's messages into what the screen shows."""

import math
from pathlib import Path

import msgspec
import pytest

from engine.core.metrics.series import Point
from engine.core.views.view import Activity, EventLine, NodeView, Update
from tests.tui.fake_engine import LAUNCHED_AT, FakeRun
from tui.data.model import IMPORTING, Header, RunModel
from tui.text.run import header_lines
from tui.text.sparkline import spark_values


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path)


def header_of(model: RunModel, now: float) -> Header:
    header = model.header(now)
    assert header is not None
    return header


def folded(run: FakeRun) -> RunModel:
    model = RunModel()
    model.apply(run.snapshot())
    return model


def test_a_model_without_messages_has_nothing_to_show():
    model = RunModel()
    assert model.header(LAUNCHED_AT) is None
    assert model.rows() == []
    assert not model.ended


def test_a_snapshot_brings_the_curves_from_the_beginning(run: FakeRun):
    for step in range(1, 6):
        run.tick(step, loss=3.0 - step / 10)
    rows = folded(run).rows()
    assert [row.view.rank for row in rows] == [0, 1, 2, 3]
    assert spark_values(rows[3].loss, 9) == [2.9, 2.8, 2.7, 2.6, 2.5]
    assert spark_values(rows[0].throughput, 9) == [2500.0] * 5


def test_an_update_changes_only_the_rows_that_it_names(run: FakeRun):
    model = folded(run)
    before = model.rows()
    model.apply(Update(points=(Point(1, "loss", LAUNCHED_AT + 1, 1, 1.5),)))
    after = model.rows()
    assert spark_values(after[1].loss, 9) == [1.5]
    assert all(after[rank] is before[rank] for rank in (0, 2, 3))


def test_the_estimate_follows_the_pace_of_the_newest_steps(run: FakeRun):
    for step in range(1, 11):
        run.tick(step, seconds=2.0)
    header = folded(run).header(run.now)
    assert header is not None
    assert header.eta == pytest.approx(90 * 2.0)
    assert header.fraction == pytest.approx(0.1)
    assert header.elapsed == pytest.approx(20.0)


def test_a_node_that_is_away_is_named_with_the_time_since(run: FakeRun):
    model = folded(run)
    nodes = tuple(
        NodeView(name=name, ranks=(), link=link, reason="", since=run.now - 12)
        for name, link in (("gpu01", "up"), ("gpu02", "down"), ("gpu03", "down"), ("gpu04", "down"))
    )
    model.apply(Update(run=msgspec.structs.replace(run.view, nodes=nodes, doing="no link")))
    header = header_of(model, run.now)
    assert header.away == {"gpu02": 12.0, "gpu03": 12.0, "gpu04": 12.0}
    _, values = header_lines(header, 160, ascii=False)
    assert "gpu02 unreachable 12 s, gpu03 unreachable 12 s and 1 more" in values.plain


def test_there_is_no_estimate_without_a_total_or_while_holding(run: FakeRun):
    for step in (1, 2, 3):
        run.tick(step)
    model = folded(run)
    model.apply(Update(run=msgspec.structs.replace(run.view, steps=None)))
    header = header_of(model, run.now)
    assert (header.eta, header.fraction) == (None, None)
    model.apply(Update(run=msgspec.structs.replace(run.view, state="holding")))
    assert header_of(model, run.now).eta is None


@pytest.mark.parametrize(("counted", "steps"), [("attempt", (40, 41)), ("generation", (60, 61))])
def test_a_new_attempt_and_a_rejoin_begin_a_new_pace(run: FakeRun, counted: str, steps: tuple[int, int]):
    for step in range(50, 60):
        run.tick(step, seconds=100.0)
    model = folded(run)
    model.apply(Update(run=msgspec.structs.replace(run.view, step=steps[1], **{counted: 1})))
    for step in steps:
        model.apply(Update(points=(Point(0, "loss", run.now + step, step, 1.0),)))
    header = header_of(model, run.now)
    assert header.eta == pytest.approx(100.0 - steps[1])


def waiting_to_start(run: FakeRun, activity: Activity) -> None:
    """No rank has a process yet."""
    run.ranks = [msgspec.structs.replace(rank, state="starting", pid=None) for rank in run.ranks]
    run.change(state="starting", activity=activity, alive=0, ranks=tuple(run.ranks))


@pytest.mark.parametrize("activity", ["opening_store", "starting_ranks"])
def test_rows_say_that_torch_is_imported_until_the_first_rank_has_a_process(run: FakeRun, activity: Activity):
    waiting_to_start(run, activity)
    model = folded(run)
    assert [row.view.note for row in model.rows()] == [IMPORTING] * 4
    first = msgspec.structs.replace(run.ranks[0], pid=4000, state="running")
    begun = msgspec.structs.replace(run.view, activity="starting_ranks", alive=1)
    model.apply(Update(run=begun, ranks=(first,)))
    assert [row.view.note for row in model.rows()] == [""] * 4


def test_the_import_is_said_once_the_node_is_there_and_never_instead_of_words_of_the_engine(run: FakeRun):
    waiting_to_start(run, "connecting")
    run.ranks[1] = msgspec.structs.replace(run.ranks[1], note="never started")
    model = folded(run)
    assert model.rows()[0].view.note == ""
    model.apply(Update(run=msgspec.structs.replace(run.view, activity="opening_store")))
    assert [row.view.note for row in model.rows()] == [IMPORTING, "never started", IMPORTING, IMPORTING]


def test_ranks_that_reach_a_step_later_do_not_slow_the_pace(run: FakeRun):
    model = folded(run)
    model.apply(Update(run=msgspec.structs.replace(run.view, step=2)))
    points = [Point(rank, "loss", LAUNCHED_AT + step + rank / 10, step, 1.0) for step in (1, 2) for rank in range(4)]
    model.apply(Update(points=tuple(points)))
    header = header_of(model, LAUNCHED_AT + 3)
    assert header.eta == pytest.approx(98.0)


def test_a_loss_that_is_not_finite_shows_as_nan_in_its_row_and_in_the_header(run: FakeRun):
    run.tick(1, loss=2.0)
    model = folded(run)
    run.tick(2, loss=None)
    model.apply(Update(run=run.view, ranks=tuple(run.ranks), points=(Point(2, "loss", run.now, 2, None),)))
    rows = model.rows()
    assert rows[2].view.loss is not None
    assert math.isnan(rows[2].view.loss)
    assert rows[1].view.loss is None
    header = header_of(model, run.now)
    assert header.loss is not None
    assert math.isnan(header.loss)


def test_a_new_attempt_does_not_inherit_the_nan_of_the_one_before(run: FakeRun):
    run.tick(1, loss=None)
    run.now += 1
    run.begin_attempt(1)
    model = folded(run)
    assert [row.view.loss for row in model.rows()] == [None] * 4
    header = header_of(model, run.now)
    assert header.loss is None


def test_a_run_that_never_had_a_loss_shows_none(run: FakeRun):
    header = folded(run).header(run.now)
    assert header is not None
    assert header.loss is None


def test_a_new_snapshot_replaces_everything(run: FakeRun):
    run.tick(1)
    run.fail(2)
    model = folded(run)
    other = FakeRun(run.folder, "quickstart-7f3a", ranks=2)
    model.apply(other.snapshot())
    assert len(model.rows()) == 2
    assert list(model.events) == []
    assert model.run is not None
    assert model.run.failure is None


def test_an_event_that_comes_twice_stands_once(run: FakeRun):
    run.fail(1)
    model = folded(run)
    model.apply(Update(events=(run.events[0], EventLine(seq=1, at=run.now, text="attempt 2 began"))))
    assert [event.text for event in model.events] == ["rank 1 failed: SIGKILL", "attempt 2 began"]


def test_elapsed_time_stands_still_once_the_run_has_ended(run: FakeRun):
    run.tick(1, seconds=60.0)
    run.end()
    model = folded(run)
    assert model.ended
    header = header_of(model, run.now + 3600)
    assert header.elapsed == pytest.approx(60.0)
