"""What front ends see of ranks that wait for a rejoin."""

from pathlib import Path

from engine.core.metrics.lines.reader import MetricReader
from engine.core.metrics.progress import RankProgress, take_record
from engine.core.metrics.readings import take_lines
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import step
from engine.core.views.views import rank_views, run_view
from tests.played_run import play_run


def test_ranks_that_wait_for_a_rejoin_have_no_throughput(tmp_path: Path):
    with play_run(tmp_path) as runner:
        state, plan = runner.run.state, runner.run.plan
    progress = [RankProgress(throughput=100.0, unit="tok") for _ in range(4)]

    def shown_after(*events: AnyEvent) -> tuple[list[float | None], float | None]:
        """The throughput of every rank, and that of the run."""
        nonlocal state
        for event in events:
            state, _ = step(state, event)
        views = rank_views(state, plan, range(4), progress, {})
        return [view.throughput for view in views], run_view(state, plan, progress, {}).throughput

    joined, joined_again = (
        [ev.RankJoined(at=4.0, attempt=0, rank=rank, generation=one, step=7) for rank in range(4)] for one in (0, 1)
    )
    assert shown_after(*joined) == ([100.0] * 4, 400.0)
    waiting = ([None] * 4, None)
    assert shown_after(ev.RankEnded(at=5.0, attempt=0, rank=2, status=-9, generation=0)) == waiting
    restart = ev.RestartRequested(at=6.0, by="ann")
    assert shown_after(restart, ev.RankSpawned(at=7.0, attempt=0, rank=2, pid=20, generation=1)) == waiting
    assert shown_after(*joined_again[:3]) == waiting
    assert shown_after(joined_again[3]) == ([100.0] * 4, 400.0)


def test_the_generation_that_a_rank_reports_in_a_rejoin_is_no_metric():
    progress = RankProgress()
    assert take_record(0, progress, {"t": 4.0, "step": 7, "elastic": "joined", "generation": 1}) == []
    points = take_record(0, progress, {"t": 5.0, "step": 8, "generation": 3})
    assert [(point.key, point.value) for point in points] == [("generation", 3.0)]


def test_the_loss_is_that_of_the_ranks_that_own_it_and_nan_is_said(tmp_path: Path):
    with play_run(tmp_path) as runner:
        state, plan = runner.run.state, runner.run.plan
    first, last = (RankProgress() for _ in range(2)), (RankProgress() for _ in range(2))
    progress = [*first, *last]
    for rank, printed in enumerate(("-1.0", "-1.0", "2.5", "3.5")):
        lines = MetricReader().feed(f"step 1 loss {printed}\nstep 2 loss {printed}\n".encode())
        take_lines(rank, progress[rank], 1.0, lines)
    run = run_view(state, plan, progress, {})
    assert (run.loss, run.loss_ranks, run.loss_odd) == (3.0, (2, 3), "")
    take_lines(3, progress[3], 2.0, MetricReader().feed(b"step 3 loss nan\n"))
    run, views = run_view(state, plan, progress, {}), rank_views(state, plan, range(4), progress, {})
    assert (run.loss, run.loss_odd) == (None, "nan")
    assert [(view.loss, view.loss_odd) for view in views] == [(None, ""), (None, ""), (2.5, ""), (None, "nan")]
