"""What a supervisor asks of a node that has connected again: a runner, with nodes that are played."""

from pathlib import Path

from engine.core.run import events as ev
from engine.core.wire import agent_requests as requests
from engine.supervisor.runner import Runner
from tests.played_run import hear, play_run

ONE_NODE = {"nodes": "gpu01:2"}


def begin_another_attempt(runner: Runner) -> None:
    runner.handle(ev.RestartRequested(at=4.0, by="alice"))
    for rank in range(2):
        runner.handle(ev.RankEnded(at=5.0, attempt=0, rank=rank, status=-15))
    runner.handle(ev.NodeCleared(at=6.0, attempt=0, node="gpu01"))
    assert runner.run.state.attempt == 1


def kinds_asked(runner: Runner, *statuses: int | None) -> list[type]:
    """What gpu01 is asked after it has connected with ranks of attempt 0 in these states."""
    link = runner.agents.links["gpu01"]
    link.sent.clear()  # type: ignore[attr-defined]
    ranks = [
        {"attempt": 0, "rank": rank, "pid": 10 + rank, "status": status, "reason": "", "generation": 0}
        for rank, status in enumerate(statuses)
    ]
    about = {"pid": 1, "warden": 1, "python": "3.11", "store": None, "library": True, "folder": "/f", "state": "/s"}
    hear(runner, {"type": "hello", "shared": False, "ranks": ranks, **about})
    return [type(request) for request in link.sent]  # type: ignore[attr-defined]


def test_ranks_of_an_earlier_attempt_that_have_ended_are_not_cleared_again(tmp_path: Path) -> None:
    """Clearing would end the store that the new attempt has asked for."""
    with play_run(tmp_path, layout=ONE_NODE) as runner:
        begin_another_attempt(runner)
        asked = kinds_asked(runner, -15, 0)
    assert requests.Clear not in asked
    assert requests.OpenStore in asked


def test_ranks_of_an_earlier_attempt_that_live_are_cleared_before_the_store_is_opened(tmp_path: Path) -> None:
    with play_run(tmp_path, layout=ONE_NODE) as runner:
        begin_another_attempt(runner)
        asked = kinds_asked(runner, -15, None)
    assert asked.index(requests.Clear) < asked.index(requests.OpenStore)
