"""What a node may say of its ranks' GPUs, and when what it said holds no more: a supervisor's runner, with nodes that are played."""

import contextlib
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core.metrics.resources import GpuUse
from engine.core.plan.plan import BackendSettings
from engine.core.run import events as ev
from engine.core.views.views import rank_views
from engine.core.wire import agent_requests as requests
from engine.supervisor.runner import Runner
from tests.played_run import hear

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=10,
)
USE = GpuUse(utilisation=97, memory=61, memory_total=80)


def say(runner: Runner, *ranks: Any, node: str = "gpu01", attempt: int = 0) -> None:
    hear(runner, {"type": "gpus", "attempt": attempt, "ranks": list(ranks)}, node)


def test_news_of_a_node_s_own_ranks_are_taken_and_taken_back(runner: Runner):
    runner.run.take_changes()
    say(runner, [0, 97, 61, 80], [1, None, None, None])
    assert runner.run.gpu_use == {0: USE}
    assert runner.run.take_changes() == [0]
    say(runner, [0, None, None, None], [1, 97, 61, 80])
    assert runner.run.gpu_use == {1: USE}


def test_news_of_another_attempt_are_passed_over(runner: Runner):
    say(runner, [0, 97, 61, 80], attempt=1)
    assert runner.run.gpu_use == {}


@pytest.mark.parametrize("rank", [2, 4, -1, None, "0", 0.0, True, []])
def test_a_node_speaks_for_its_own_ranks_only(runner: Runner, rank: object):
    with pytest.raises(ValueError, match="rank"):
        say(runner, [rank, 97, 61, 80])
    assert runner.run.gpu_use == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_whatever_a_node_says_is_taken_or_refused(runner: Runner, said: Any):
    with contextlib.suppress(ValueError):  # what a link takes for nonsense
        hear(runner, {"type": "gpus", "attempt": 0, "ranks": said})
    assert set(runner.run.gpu_use) <= {0, 1}


def test_nothing_is_known_of_a_node_whose_link_has_broken(runner: Runner):
    say(runner, [0, 97, 61, 80])
    say(runner, [2, 97, 61, 80], node="gpu02")
    runner.run.take_changes()
    runner.handle(ev.NodeDisconnected(at=4.0, node="gpu01", reason="cut"))
    assert runner.run.gpu_use == {2: USE}
    assert set(runner.run.take_changes()) >= {0, 1}


def test_a_rank_that_has_ended_has_no_gpu(runner: Runner):
    for rank in (2, 3):
        say(runner, [rank, 97, 61, 80], node="gpu02")
    runner.handle(ev.RankEnded(at=4.0, attempt=0, rank=2, status=0, generation=0))
    views = rank_views(runner.run.state, runner.run.plan, range(4), runner.ingest.progress, runner.run.gpu_use)
    assert [view.gpu for view in views] == [None, None, None, USE]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_node_is_asked_for_its_gpus_where_ranks_compute_on_them(runner: Runner, device: Literal["cuda", "cpu"]):
    backend = BackendSettings(name="x", env={}, device=device)
    runner.run.plan = msgspec.structs.replace(runner.run.plan, backend=backend)
    known = [{"attempt": 0, "rank": rank, "pid": 10 + rank, "status": None} for rank in (2, 3)]
    hear(
        runner,
        {"type": "hello", "pid": 1, "ranks": known, "library": True, "folder": "/there", "state": "/state"},
        "gpu02",
    )
    asked: list[requests.Request] = runner.agents.links["gpu02"].sent  # type: ignore[attr-defined]
    sent = [request for request in asked if isinstance(request, requests.WatchGpus)]
    assert len(sent) == (device == "cuda")
    for request in sent:
        assert request.ranks == (2, 3)
        assert request.argv[:3] == ("/usr/bin/python3", "-I", "-S")
        assert request.argv[3].endswith("/gpus.py")
        assert request.argv[4:] == ("0", "1")
