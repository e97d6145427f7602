"""The state machine: what users ask for."""

import pytest

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.health_events import Kills
from engine.core.run.moves import UNREACHABLE_PATIENCE
from engine.core.run.requests import RESTART_GUARD, refuses_restart
from engine.core.run.state import Alive, Stopping, rank_word, root_cause
from tests.run_story import TWO, Story, rejoining, without_b


def test_ranks_that_were_asked_to_stop_are_stopped_not_failed() -> None:
    story = Story().run().stop().end(0, -2).end(1, -9)
    assert [rank_word(phase) for phase in story.state.ranks] == ["stopped", "stopped"]
    assert root_cause(story.state) is None
    assert story.clear().close().outcome() == ("stopped", "stopped by alice")


def test_a_second_wish_to_stop_may_be_more_urgent() -> None:
    story = Story().run().stop()
    assert [type(action) for action in story.stop().actions] == [act.Ignore]
    assert story.stop(at_once=True).actions == (act.StopRanks(node="a", attempt=0, at_once=True),)


def test_an_urgent_stop_stays_urgent_for_a_node_that_is_away() -> None:
    story = without_b(Story(TWO).run())
    assert story.stop(at_once=True).actions == (
        act.StopRanks(node="a", attempt=0, at_once=True),
        act.OpenNode(node="b", patience=UNREACHABLE_PATIENCE),
    )
    story.tell(
        ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=(ev.KnownRank(attempt=0, rank=2, pid=102),))
    )
    assert story.actions == (act.StopRanks(node="b", attempt=0, at_once=True),)


def test_a_wish_to_stop_wins_over_a_restart_that_is_under_way() -> None:
    story = Story().run().end(1, 1).restart().stop().end(0).clear().close()
    assert story.outcome() == ("stopped", "stopped by alice")
    story = Story().run().end(1, 1).restart().end(0).stop().clear().close()
    assert story.outcome() == ("stopped", "stopped by alice")


def test_restarting_twice_starts_one_attempt() -> None:
    story = Story().run().end(1, 1).restart().restart().end(0).restart().clear()
    assert story.state.attempt == 1
    story.open_store().spawn()
    story.tell(ev.RestartRequested(at=story.state.attempt_since + RESTART_GUARD / 2, by="alice"))
    assert [type(action) for action in story.actions] == [act.Ignore]


def test_a_restart_that_is_ignored_is_under_way_already_unless_the_run_ends() -> None:
    story = Story().run().end(1, 1).restart()
    assert not refuses_restart(story.state)
    story.end(0)
    assert not refuses_restart(story.state)
    story.clear()
    assert not refuses_restart(story.state)
    story = Story().run().stop()
    assert refuses_restart(story.state)
    story.end(0, 0)
    story.end(1, 0)
    assert refuses_restart(story.state)


def test_a_run_that_has_ended_can_be_started_again() -> None:
    story = Story(on_failure="stop").run().end(1, 1).end(0).clear().close().restart()
    assert story.actions == (act.OpenNode(node="a"),)
    assert story.run().state.attempt == 1
    assert story.end(0).end(1).clear().close().outcome() == ("succeeded", "")


def test_stopping_before_anything_started_ends_the_run() -> None:
    story = Story(TWO).connect("a").stop()
    assert story.actions == (
        act.CloseNode(node="a"),
        act.CloseNode(node="b"),
        act.OpenNode(node="b", patience=UNREACHABLE_PATIENCE),
    )
    assert story.close().outcome() == ("stopped", "stopped by alice")


def test_an_urgent_stop_does_not_wait_for_what_ranks_wrote() -> None:
    story = Story().run().end(0).end(1)
    assert story.stop(at_once=True).actions == (act.ClearNode(node="a", attempt=0, at_once=True),)


def test_a_signal_goes_to_ranks_that_are_alive_and_reachable() -> None:
    story = without_b(Story(TWO).run().end(1))
    kill = {rank: story.tell(ev.KillRequested(at=story.at(), by="alice", rank=rank, signal=9)) for rank in range(3)}
    assert kill[0] == (act.SignalRank(node="a", attempt=0, rank=0, signal=9),)
    assert kill[1] == (act.Ignore(reason="rank 1 has ended already"),)
    assert kill[2] == (act.Ignore(reason="b is not reachable: link lost"),)


# --- requests that come late


@pytest.mark.parametrize("phase", ["running", "ended"])
def test_a_restart_of_an_earlier_attempt_is_refused_with_the_reason(phase: str) -> None:
    story = Story().run().end(1, 1).restart().end(0, -2).clear().open_store().spawn()
    if phase == "ended":
        story.end(0).end(1).clear().close()
    before = story.state
    story.tell(ev.RestartRequested(at=story.at(), by="bob", attempt=0))
    assert story.state is before
    assert story.actions == (act.Ignore(reason="you saw attempt 0; attempt 1 has started since"),)
    story.tell(ev.RestartRequested(at=story.at(), by="bob", attempt=1))
    assert story.state is not before


def test_a_restart_of_an_earlier_generation_is_refused_with_the_reason() -> None:
    story = rejoining().end(2, -9).restart().spawn(2).join()
    before = story.state
    story.tell(ev.RestartRequested(at=story.at(), by="bob", attempt=0, generation=0))
    assert story.state is before
    assert story.actions == (act.Ignore(reason="you saw generation 0; generation 1 has begun since"),)
    story.tell(ev.RestartRequested(at=story.at(), by="bob", attempt=0, generation=1))
    assert isinstance(story.state.phase, Stopping)


def test_a_kill_of_a_process_that_was_replaced_reaches_no_other_one() -> None:
    story = rejoining()
    seen = story.state.ranks[2]
    assert isinstance(seen, Alive)
    story.end(2, -9).restart()
    story.tell(ev.RankSpawned(at=story.at(), attempt=0, rank=2, pid=seen.pid + 1, generation=1))

    def kill(pid: int | None) -> tuple[act.Action, ...]:
        return story.tell(ev.KillRequested(at=story.at(), by="bob", rank=2, signal=9, pid=pid))

    before = story.state
    refusal = f"you saw process {seen.pid}; process {seen.pid + 1} has replaced it"
    assert kill(seen.pid) == (act.Ignore(reason=refusal),)
    assert story.state is before
    signal = act.SignalRank(node="b", attempt=0, rank=2, signal=9)
    assert kill(seen.pid + 1) == kill(None) == (signal,)


# --- who sent the signal that ended a rank


def test_a_kill_explains_the_death_that_it_caused_and_no_later_one() -> None:
    kills = Kills()
    kills.take(ev.KillRequested(at=1.0, by="alice", rank=1, signal=9))
    assert (kills.sender(1, -9), kills.sender(1, -15), kills.sender(0, -9)) == ("alice", "", "")
    kills.take(ev.RankEnded(at=2.0, attempt=0, rank=1, status=-9))
    assert kills.sender(1, -9) == ""


def test_a_kill_of_a_process_that_was_replaced_explains_nothing() -> None:
    kills = Kills()
    kills.take(ev.KillRequested(at=1.0, by="alice", rank=1, signal=9))
    kills.take(ev.RankSpawned(at=2.0, attempt=0, rank=1, pid=7, generation=1))
    assert kills.sender(1, -9) == ""


@pytest.mark.parametrize(
    ("killed_by", "outcome"), [("", ("failed", "rank 1: exit 1")), ("alice", ("stopped", "stopped by alice"))]
)
def test_who_stops_a_run_that_holds_stops_it_only_if_a_user_has_killed_the_rank(
    killed_by: str, outcome: tuple[str, str]
) -> None:
    story = Story().run().end(1, 1, by=killed_by).stop()
    assert story.end(0, -2).clear().close().outcome() == outcome
