"""What a node may say of its ranks' processes, and when it holds no more."""

from typing import Any

import pytest

from engine.core.metrics.resources import ProcessUse
from engine.core.run import events as ev
from engine.core.views.views import rank_views
from engine.supervisor.runner import Runner
from tests.played_run import hear

USE = ProcessUse(cpu=98, memory=512 << 20, read=1_200_000, written=0)


def say(runner: Runner, *ranks: Any, node: str = "gpu01", attempt: int = 0) -> None:
    hear(runner, {"type": "usage", "attempt": attempt, "ranks": list(ranks)}, node)


def test_what_a_rank_uses_is_rounded_so_that_small_changes_are_no_news(runner: Runner):
    say(runner, [0, 98, (512 << 20) + 4096, 1_234_567, 0])
    assert runner.run.process_use == {0: USE}
    runner.run.take_changes()
    say(runner, [0, 98, (512 << 20) - 4096, 1_190_000, 0])
    assert runner.run.take_changes() == []
    say(runner, [0, 12, 512 << 20, None, None])
    assert runner.run.process_use == {0: ProcessUse(cpu=12, memory=512 << 20, read=None, written=None)}
    assert runner.run.take_changes() == [0]


def test_what_a_rank_uses_is_kept_as_curves_whether_it_has_changed_or_not(runner: Runner):
    for cpu in (98, 98, 12):
        say(runner, [0, cpu, 512 << 20, 1_000, 200], [1, 1, 1 << 20, None, None])
    series = runner.ingest.series
    assert [value for _, _, value in series.dump()[0].recent] == [98, 98, 12]
    assert series.keys() == ["process.cpu", "process.io", "process.memory"]
    assert (series.get(0, "process.io").last, series.get(1, "process.io")) == (1200, None)  # type: ignore[union-attr]
    assert runner.ingest.points_seen == 3 * 5


def test_a_run_with_very_many_ranks_has_no_such_curves(runner: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.supervisor.output.ingest.MOST_RANKS", 3)
    say(runner, [0, 98, 512 << 20, 0, 0])
    assert runner.ingest.series.keys() == []


def test_news_of_another_attempt_are_passed_over(runner: Runner):
    say(runner, [0, 98, 0, 0, 0], attempt=1)
    assert runner.run.process_use == {}


@pytest.mark.parametrize(
    "said", [[2, 1, 1, 1, 1], [0, -1, 1, 1, 1], [0, 1, 1, 1], [0, 1.5, 1, 1, 1], [0, 1, "1", 1, 1], [0, None, 1, 1, 1]]
)
def test_a_node_speaks_for_its_own_ranks_and_in_whole_numbers(runner: Runner, said: list[object]):
    with pytest.raises(ValueError, match=r"rank|Expected|Array"):
        say(runner, said)
    assert runner.run.process_use == {}


def test_nothing_is_known_of_a_node_whose_link_has_broken_nor_of_a_rank_that_has_ended(runner: Runner):
    say(runner, [0, 98, 512 << 20, 1_200_000, 0])
    for rank in (2, 3):
        say(runner, [rank, 98, 512 << 20, 1_200_000, 0], node="gpu02")
    runner.handle(ev.NodeDisconnected(at=4.0, node="gpu01", reason="cut"))
    runner.handle(ev.RankEnded(at=4.0, attempt=0, rank=2, status=0, generation=0))
    run = runner.run
    views = rank_views(run.state, run.plan, range(4), runner.ingest.progress, {}, {}, run.process_use)
    assert [view.process for view in views] == [None, None, None, USE]
