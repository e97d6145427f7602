"""What a run is doing and what a restart would do, as fields for decisions and as sentences for people."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.metrics.progress import RankProgress
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import launch, step
from engine.core.run.state import RunState
from engine.core.views.activity import current_activity, next_restart
from engine.core.views.story import tell_all
from engine.supervisor.watches.patience import JOIN_LOOKS, JoinWatch

UP = ev.NodeConnected(at=1.0, node="a", agent_pid=7)
STORE = ev.StoreOpened(at=2.0, attempt=0, node="a", port=4000)
STARTED = tuple(ev.RankSpawned(at=3.0, attempt=0, rank=rank, pid=100 + rank, generation=0) for rank in (0, 1, 2))
JOINED = tuple(ev.RankJoined(at=4.0, attempt=0, rank=rank, generation=0, step=7) for rank in (0, 1, 2))
AWAY = ev.NodeDisconnected(at=6.0, node="a", reason="the link broke")
STOP = ev.StopRequested(at=7.0, by="alice")
AGAIN = ev.RestartRequested(at=7.0, by="alice", scope="all")
REJOIN = ev.RestartRequested(at=7.0, by="alice")
BACK = ev.RankSpawned(at=8.0, attempt=0, rank=2, pid=105, generation=1)
WAITING = (
    ev.RankWaiting(at=8.0, attempt=0, rank=0, generation=1),
    ev.RankWaiting(at=8.0, attempt=0, rank=1, generation=0),
)
CLEARED = (ev.NodeCleared(at=9.0, attempt=0, node="a"), ev.NodeClosed(at=9.5, node="a"))


def dies(rank: int) -> ev.RankEnded:
    return ev.RankEnded(at=5.0, attempt=0, rank=rank, status=-9)


def after(*events: AnyEvent, on_failure: str = "hold") -> RunState:
    """The state of a run of three ranks after some events."""
    nodes = (("a", (0, 1, 2)),)
    first = ev.RunLaunched(at=0.0, run="x-1", name="x", nodes=nodes, on_failure=on_failure, max_restarts=3)
    state, _ = launch(first)
    for event in events:
        state, _ = step(state, event)
    return state


@pytest.mark.parametrize(
    ("events", "activity", "words"),
    [
        ((), "connecting", "waiting for a"),
        ((UP,), "opening_store", "opening the store"),
        ((UP, STORE, *STARTED[:1]), "starting_ranks", "starting ranks, 1 of 3"),
        ((UP, STORE, *STARTED), "", ""),
        ((UP, STORE, *STARTED, AWAY), "node_away", "no connection to a; its ranks keep running"),
        (
            (UP, STORE, *STARTED, ev.StoreLost(at=5.0, attempt=0, reason="gone")),
            "store_lost",
            "the store is lost: gone",
        ),
        (
            (UP, STORE, *STARTED, *JOINED, dies(2), REJOIN, BACK),
            "rejoining",
            "rejoining; ranks 0, 1, 2 not in generation 1 yet",
        ),
        (
            (UP, STORE, *STARTED, *JOINED, dies(2), REJOIN, BACK, *WAITING),
            "rejoining",
            "rejoining; ranks 0, 1, 2 not in generation 1 yet, rank 1 still in an earlier one",
        ),
        ((UP, STORE, *STARTED, STOP), "stopping", "stopping (stopped by alice)"),
        ((UP, STORE, *STARTED, AGAIN), "restarting", "restarting as attempt 1 (restarted by alice)"),
        ((UP, STORE, *STARTED, STOP, dies(0), dies(1), dies(2), *CLEARED), "ended", "stopped by alice"),
    ],
)
def test_what_a_run_is_doing(events: Sequence[AnyEvent], activity: str, words: str):
    assert current_activity(after(*events), [RankProgress()] * 3) == (activity, words)


def test_ranks_that_have_not_joined_are_an_activity_of_their_own():
    progress = [RankProgress(meeting="joining"), RankProgress(meeting="joining"), RankProgress()]
    said = "rank 2 has not joined yet; 2 of 3 wait"
    assert current_activity(after(UP, STORE, *STARTED), progress) == ("joining", said)


NOTHING = [RankProgress()] * 3  # no rank has reported anything


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (NOTHING, ""),
        ([RankProgress(step=7), *NOTHING], "; no checkpoint was reported, so up to 7 steps are lost"),
        (
            [
                RankProgress(step=46),
                RankProgress(step=47, checkpoint=40, checkpoint_at=3.0),
                RankProgress(checkpoint=20),
            ],
            "; the newest checkpoint is of step 40, so 7 steps are lost",
        ),
        ([RankProgress(step=41, checkpoint=40)], "; the newest checkpoint is of step 40, so 1 step is lost"),
        ([RankProgress(step=40, checkpoint=40)], "; the newest checkpoint is of step 40, so 0 steps are lost"),
        ([RankProgress(checkpoint=40)], ""),  # of the attempt before
    ],
)
def test_a_restart_of_all_ranks_says_what_it_loses(progress: list[RankProgress], words: str):
    ended = after(UP, STORE, *STARTED, STOP, dies(0), dies(1), dies(2), *CLEARED)
    assert next_restart(ended, progress).words == f"start attempt 1 of all 3 ranks{words}"
    assert next_restart(after(UP, STORE, *STARTED, *JOINED, dies(2)), progress).words == (
        "rejoin rank 2; the other 2 keep running"
    )


@pytest.mark.parametrize(
    ("events", "kind", "ranks", "words"),
    [
        ((), "none", (), ""),
        ((UP, STORE, *STARTED), "attempt", (), "stop the 3 that run and start attempt 1 of all 3 ranks"),
        ((UP, STORE, *STARTED, *JOINED, dies(2)), "rejoin", (2,), "rejoin rank 2; the other 2 keep running"),
        ((UP, STORE, *STARTED, *JOINED, dies(2), dies(0)), "rejoin", (0, 2), "rejoin ranks 0, 2; the other keeps running"),
        ((UP, STORE, *STARTED, STOP), "none", (), ""),
        ((UP, STORE, *STARTED, STOP, dies(0), dies(1), dies(2), *CLEARED), "attempt", (), "start attempt 1 of all 3 ranks"),
    ],
)  # fmt: skip
def test_what_a_restart_would_do(events: Sequence[AnyEvent], kind: str, ranks: tuple[int, ...], words: str):
    assert next_restart(after(*events), NOTHING) == (kind, ranks, words)


FAILING = (UP, STORE, *STARTED, dies(2))


@pytest.mark.parametrize("events", [FAILING, (*FAILING, dies(1), dies(0))], ids=["Stopping", "Clearing"])
def test_a_run_that_is_ending_because_it_failed_can_be_restarted(events: Sequence[AnyEvent]):
    restart = next_restart(after(*events, on_failure="stop"), NOTHING)
    assert restart == ("attempt", (), "start attempt 1 of all 3 ranks")


STAGES = [(), (UP,), (UP, STORE), (UP, STORE, *STARTED), FAILING, (*FAILING, dies(1), dies(0)), (UP, STORE, *STARTED, STOP),
          (UP, STORE, *STARTED, *JOINED, dies(2)), (UP, STORE, *STARTED, *JOINED, dies(2), REJOIN),
          (UP, STORE, *STARTED, AGAIN), (*FAILING, dies(1), dies(0), *CLEARED[:1]), (*FAILING, dies(1), dies(0), *CLEARED)]  # fmt: skip


@pytest.mark.parametrize("on_failure", ["hold", "stop"])
@pytest.mark.parametrize("events", STAGES)
@pytest.mark.parametrize("scope", ["smallest", "all"])
def test_a_restart_is_offered_exactly_where_it_is_accepted(
    scope: ev.Scope, events: Sequence[AnyEvent], on_failure: str
):
    state = after(*events, on_failure=on_failure)
    later, actions = step(state, ev.RestartRequested(at=100.0, by="alice", scope=scope))
    refused = later is state and any(isinstance(action, act.Ignore) for action in actions)
    assert (next_restart(state, NOTHING, scope).kind == "none") == refused


def test_a_restart_that_can_not_be_a_rejoin_says_why():
    restart = next_restart(after(UP, STORE, *STARTED, dies(2)), NOTHING)
    assert restart.kind == "attempt"
    assert "(no rejoin: the script does not use rankdeck.elastic" in restart.words


def test_processes_that_wait_for_a_store_that_nobody_hosts_are_told_with_the_cure() -> None:
    progress = [RankProgress(meeting="joined"), RankProgress(meeting="orphan"), RankProgress()]
    activity, words = current_activity(after(UP, STORE, *STARTED), progress)
    assert activity == "joining"
    assert words.startswith("rank 1 starts processes that wait for a store")
    assert 'launch.environment = "plain"' in words


def test_it_is_reported_once_after_some_checks_in_a_row() -> None:
    progress = [RankProgress(meeting="orphan"), RankProgress(), RankProgress()]
    warnings: list[tuple[str, ...]] = []
    plan = SimpleNamespace(places=[SimpleNamespace(node="gpu01")] * 3)
    run: Any = SimpleNamespace(state=after(UP, STORE, *STARTED), plan=plan, warn=lambda *one: warnings.append(one))
    ingest: Any = SimpleNamespace(progress=progress)
    watch = JoinWatch(run, ingest)
    for _ in range(JOIN_LOOKS):
        watch.look(0.0)
    progress[0].meeting = "joined"
    watch.look(0.0)
    progress[0].meeting = "orphan"
    for _ in range(JOIN_LOOKS):
        watch.look(0.0)
    assert warnings == []
    for _ in range(JOIN_LOOKS):
        watch.look(0.0)
    ((node, check, _),) = warnings
    assert (node, check) == ("gpu01", "environment")


@pytest.mark.parametrize(("is_auto", "level"), [(True, "notice"), (False, "warning")])
def test_only_a_backend_that_the_profile_names_and_that_can_not_run_is_a_warning(is_auto: bool, level: str):
    nodes = (("a", (0, 1, 2)),)
    first = ev.RunLaunched(
        at=0.0, run="x-1", name="x", nodes=nodes, on_failure="hold", max_restarts=3,
        backend="gloo", backend_note="automatic words that decide nothing", backend_is_auto=is_auto,
    )  # fmt: skip
    assert tell_all([first])[0].level == level
