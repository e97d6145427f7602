"""The state machine: dead ranks rejoin alone."""

import typing
from collections.abc import Callable

import pytest

from engine.core.metrics.progress import RankProgress
from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.rejoin import APART_LIMIT, EXIT_TO_BE_REPLACED, MEETING_LIMIT, apart, patience, why_no_rejoin
from engine.core.run.state import Alive, Holding, Outcome, Pending, Restart, Running, Starting, Stopping
from engine.core.views.activity import current_activity
from engine.core.views.story import tell_all
from tests.run_story import TWO, Story, given_up, rejoining, without_b


def told(number: int, *news: typing.Any) -> AnyAction:
    return act.TellRanks(node="a", attempt=0, number=number, news=news)


def spawned(node: str, rank: int, generation: int) -> AnyAction:
    return act.SpawnRanks(
        node=node, attempt=0, ranks=(rank,), address="127.0.0.1", port=4000, generations=(generation,)
    )


def test_a_dead_rank_rejoins_and_the_others_are_told() -> None:
    story = rejoining().end(2, -9)
    assert story.actions == (told(0, "lost", 0),)
    assert isinstance(story.state.phase, Holding)
    assert story.restart().actions == (told(1, "generation", 1), spawned("b", 2, 1))
    assert (story.state.attempt, story.state.generation, story.state.joined) == (0, 1, frozenset())
    assert story.spawn(2).join().state.joined == {0, 1, 2, 3}
    assert isinstance(story.state.phase, Running)
    assert story.state.ranks[0] == Alive(pid=100, since=story.state.ranks[0].since)  # type: ignore[union-attr]


def test_several_dead_ranks_rejoin_together_and_are_told_of_once() -> None:
    story = rejoining().end(0, -9).end(3, -9)
    assert story.actions == ()
    assert story.restart().actions == (told(1, "generation", 1), spawned("a", 0, 1), spawned("b", 3, 1))


def test_a_second_death_while_a_generation_forms_makes_another_generation() -> None:
    story = rejoining().end(2, -9).restart().end(1, -9)
    assert story.actions == (told(2, "lost", 1),)
    assert story.restart().actions == (told(3, "generation", 2), spawned("a", 1, 2))
    story.spawn(1, 2)
    assert [story.state.generation_of(rank) for rank in range(4)] == [0, 2, 1, 0]


def test_ranks_of_mpi_go_on_over_gloo_until_the_next_attempt_and_the_run_says_so() -> None:
    words = "over gloo instead of mpi until the next attempt"
    story = Story(backends=("mpi",)).run().join()
    assert current_activity(story.state, [RankProgress()] * 2).words == ""
    story.end(1, -9).restart().spawn(1).join(over="gloo")
    assert tell_all(story.journal)[-1].text == f"generation 1: all 2 ranks continue from step 7, {words}"
    assert current_activity(story.state, [RankProgress()] * 2) == ("rejoined", words)


def test_news_of_the_process_that_was_replaced_is_none() -> None:
    story = rejoining().end(2, -9).restart()
    before = story.state
    story.tell(ev.RankEnded(at=story.at(), attempt=0, rank=2, status=-9, generation=0))
    assert story.state is before


@pytest.mark.parametrize(
    ("story", "why"),
    [
        (lambda: Story().run().end(1, 1), "does not use rankdeck.elastic"),
        (lambda: Story().run().join().end(1, 1).end(0, 1), "no rank that has the state is left"),
        (lambda: one_after_another(-9), "no rank that has the state is left"),
        (lambda: Story(TWO).run().join().end(0, 1).end(1, 0), "rank 1 has finished"),
        (lambda: given_up(Story(TWO).run().join()), "b was given up"),
        (lambda: _store_gone(Story(TWO).run().join()).end(2, 1), "the store is lost"),
    ],
)
def test_where_dead_ranks_can_not_rejoin_all_start_again_and_the_reason_is_said(story: Callable[[], Story], why: str):
    assert why in why_no_rejoin(story().state)
    again = story().restart()
    assert any(isinstance(action, act.StopRanks | act.ClearNode) for action in again.actions)


def one_after_another(last: int) -> Story:
    """A story in which each old process ends while new ones wait for the state; `last`: the status of the last one."""
    return rejoining().end(2, -9).restart().spawn(2).end(0, -9).end(1, -9).end(3, last)


def test_a_process_that_leaves_its_state_to_the_next_is_not_the_end_of_the_state() -> None:
    assert why_no_rejoin(one_after_another(EXIT_TO_BE_REPLACED).state) == ""


def _store_gone(story: Story) -> Story:
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="its process ended"))
    return story


def test_a_rank_whose_node_is_away_rejoins_when_the_node_is_back() -> None:
    story = without_b(rejoining()).end(2, -9).restart()
    assert story.actions == (told(1, "generation", 1),)
    known = (ev.KnownRank(attempt=0, rank=2, pid=102, status=-9), ev.KnownRank(attempt=0, rank=3, pid=103))
    story.tell(ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=known))
    assert story.actions == (spawned("b", 2, 1),)


def test_all_can_be_asked_for_although_a_rejoin_is_possible() -> None:
    story = rejoining().end(2, -9)
    actions = story.tell(ev.RestartRequested(at=story.at(), by="alice", scope="all"))
    assert [type(action) for action in actions] == [act.StopRanks, act.StopRanks]


def test_a_restart_key_that_is_pressed_twice_rejoins_once() -> None:
    story = rejoining().end(2, -9).restart().spawn(2)
    story.tell(ev.RestartRequested(at=story.state.generation_since + 1, by="alice"))
    assert isinstance(story.actions[0], act.Ignore)
    assert story.state.generation == 1


def test_the_policy_restart_rejoins_by_itself_up_to_its_limit() -> None:
    story = rejoining("restart", restarts=2)
    for generation in (1, 2):
        story.end(2, -9, after=10 * generation)
        assert spawned("b", 2, generation) in story.actions
        story.spawn(2).join()
    story.end(2, -9, after=30)
    assert isinstance(story.state.phase, Stopping)


def test_ranks_that_die_together_count_as_one_restart() -> None:
    story = rejoining("restart", restarts=1).end(1, -9, after=5).end(2, -9, after=5).end(3, -9, after=5)
    assert (story.state.generation, story.state.restarts) == (3, 1)
    assert isinstance(story.state.phase, Starting)


def test_replacements_that_fail_alike_make_all_ranks_start_again_and_end_no_run() -> None:
    story = rejoining("restart", restarts=99).end(2, -9, after=5)
    for _ in range(2):
        assert isinstance(story.state.phase, Starting)
        story.spawn(2).end(2, 1, after=5, place="ValueError at train.py:7")
    assert isinstance(story.state.phase, Stopping)
    assert isinstance(story.state.phase.then, Restart)


def test_a_rank_that_makes_way_is_replaced_without_being_asked() -> None:
    story = rejoining().end(2, -9).restart().spawn(2).end(1, EXIT_TO_BE_REPLACED)
    assert story.actions == (told(2, "lost", 1), told(3, "generation", 2), spawned("a", 1, 2))
    assert story.state.restarts == 0


def test_a_head_node_that_comes_back_is_told_everything_again() -> None:
    story = rejoining().end(2, -9).restart().spawn(2)
    story.tell(ev.NodeDisconnected(at=story.at(), node="a", reason="x"))
    known = tuple(ev.KnownRank(attempt=0, rank=rank, pid=100 + rank) for rank in (0, 1))
    story.tell(ev.NodeConnected(at=story.at(), node="a", agent_pid=7, ranks=known))
    assert story.actions == (told(0, "lost", 0), told(1, "generation", 1))


# --- what a script may do with the exit status, and what repeats


def test_a_script_that_exits_with_the_status_of_making_way_fails_like_any_other() -> None:
    story = rejoining("restart", restarts=0).end(2, EXIT_TO_BE_REPLACED)
    assert isinstance(story.state.phase, Stopping)
    story = rejoining("hold").end(2, EXIT_TO_BE_REPLACED)
    assert isinstance(story.state.phase, Holding)


def test_a_rank_that_has_joined_the_newest_generation_does_not_make_way() -> None:
    story = rejoining("hold").end(2, -9).restart().spawn(2).join().end(1, EXIT_TO_BE_REPLACED)
    assert isinstance(story.state.phase, Holding)


def test_a_new_process_does_not_make_way() -> None:
    story = rejoining("hold").end(2, -9).restart().spawn(2).end(2, EXIT_TO_BE_REPLACED)
    assert isinstance(story.state.phase, Holding)


@pytest.mark.parametrize("policy", ["hold", "restart"])
@pytest.mark.parametrize("status", [EXIT_TO_BE_REPLACED, 1])
def test_ranks_that_die_in_turn_while_they_rejoin_come_to_an_end(policy: str, status: int) -> None:
    story = rejoining(policy, restarts=1).end(3, -9)
    if policy == "hold":
        story.restart()
    for number in range(50):
        if not isinstance(story.state.phase, Starting | Running):
            break
        story.spawn(*[rank for rank, phase in enumerate(story.state.ranks) if isinstance(phase, Pending)])
        story.end(number % 3, status)
    assert isinstance(story.state.phase, Holding if policy == "hold" else Stopping)
    assert story.state.generation <= 2 + len(story.state.ranks)


def test_once_all_ranks_have_met_each_may_make_way_again() -> None:
    story = rejoining().end(2, -9).restart().spawn(2).end(1, EXIT_TO_BE_REPLACED)
    assert story.state.free_rejoins == 1
    assert story.spawn(1).join().state.free_rejoins == 0


@pytest.mark.parametrize("policy", ["hold", "restart"])
def test_a_rejoin_that_loses_its_store_becomes_an_attempt_of_all_ranks(policy: str) -> None:
    story = rejoining(policy).end(2, -9)
    if policy == "hold":
        story.restart()
    story.spawn(2).join(0)
    assert isinstance(story.state.phase, Running)
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="SIGKILL"))
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then == Restart(reason="the store was lost while ranks rejoined: SIGKILL")
    story.end(0, -2).end(1, -2).end(2, -2).end(3, -2).clear()
    assert (story.state.attempt, story.state.store_trouble) == (1, "")


def test_ranks_that_have_met_again_need_the_store_no_more() -> None:
    story = rejoining().end(2, -9).restart().spawn(2).join()
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="SIGKILL"))
    assert isinstance(story.state.phase, Running)


# --- whether the ranks meet in one generation


def not_told(policy: str = "restart") -> Story:
    """Survivors that are never told end one after the other, but for rank 2, and each comes back in a generation of its own."""
    story = rejoining(policy, restarts=9).end(3, -9, after=5).spawn(3).wait(1, 3)
    for generation, rank in ((2, 0), (3, 1)):
        story.end(rank, 1, after=5).spawn(rank).wait(generation, rank)
    return story


def test_ranks_that_wait_in_generations_of_their_own_are_found() -> None:
    story = not_told()
    assert isinstance(story.state.phase, Running)
    assert (story.state.generation, story.state.waits_in) == (3, (2, 3, -1, 1))
    assert (apart(story.state), patience(story.state)) == ([0, 3], APART_LIMIT)


def test_ranks_that_do_not_meet_start_again_as_the_next_attempt() -> None:
    story = not_told().overdue()
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then == Restart(reason="ranks 0, 3 did not notice generation 3")
    for rank in range(4):
        story.end(rank, -2)
    story.clear().open_store().spawn()
    assert (story.state.attempt, story.state.generation, story.state.waits_in) == (1, 0, ())
    assert patience(story.state) is None


def test_each_rejoin_that_does_not_come_about_has_counted_as_a_restart() -> None:
    story = rejoining("restart", restarts=2)
    for restarts in (1, 2):
        story.end(3, -9, after=10 * restarts).spawn(3).wait(0, 0, 1, 2).overdue()
        assert story.state.restarts == restarts
        for rank in range(4):
            story.end(rank, -2)
        story.clear().open_store().spawn().join()
    story.end(3, -9, after=30)
    assert isinstance(story.state.phase, Stopping)
    assert isinstance(story.state.phase.then, Outcome)


def test_a_rejoin_may_take_as_long_as_a_script_needs_to_get_there() -> None:
    story = rejoining("restart").end(3, -9)
    assert patience(story.state) is None
    assert patience(story.spawn(3).state) is None
    assert patience(story.wait(1, 0, 1, 2).state) is None, "rank 3 may still prepare its data"
    assert patience(story.wait(1, 3).state) == MEETING_LIMIT
    assert patience(story.join().state) is None


def test_a_rank_that_has_left_a_generation_is_not_apart() -> None:
    story = rejoining("restart").wait(0, 0, 1, 2).end(3, -9).spawn(3).wait(1, 0, 1)
    assert apart(story.state) == [2]
    assert apart(story.wait(1, 2).state) == []


def test_what_the_process_said_that_was_replaced_is_forgotten() -> None:
    story = rejoining("restart").end(3, -9).spawn(3).wait(1, 3).end(3, -9).spawn(3)
    assert story.wait(1, 3).state.waits_of(3) == -1
    assert apart(story.state) == []


def test_a_survivor_that_computes_is_not_apart() -> None:
    story = rejoining("restart").end(3, -9).spawn(3).wait(1, 0, 1, 2, 3).join()
    story.end(3, -9).spawn(3)
    assert (story.state.generation, apart(story.state)) == (2, [])
    for generation in (0, 1):  # records that a new supervisor reads once more
        story.wait(generation, 0)
        story.tell(ev.RankJoined(at=story.at(), attempt=0, rank=0, generation=generation))
    assert apart(story.state) == []


def test_ranks_are_not_apart_while_they_can_not_be_told() -> None:
    story = rejoining("restart").end(3, -9).spawn(3).wait(0, 0)
    assert patience(story.state) == APART_LIMIT
    story.tell(ev.NodeDisconnected(at=story.at(), node="a", reason="x"))
    assert patience(story.state) is None


def test_a_rejoin_that_is_over_is_not_overdue() -> None:
    story = rejoining("restart").end(3, -9).spawn(3).join().overdue()
    assert isinstance(story.actions[0], act.Ignore)
    story.tell(ev.RejoinOverdue(at=story.at(), attempt=0, generation=0))
    assert isinstance(story.actions[0], act.Ignore)


def test_a_rejoin_that_a_finished_rank_would_miss_becomes_an_attempt_of_all_ranks() -> None:
    """The end of a rank was not seen, so that it counts as lost; the others have finished meanwhile."""
    story = rejoining("restart").end(3, -9).spawn(3).end(0)
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then == Restart(reason="rank 0 finished before generation 1 had formed")


def test_ranks_that_have_met_again_may_finish_one_after_the_other() -> None:
    story = rejoining("restart").end(3, -9).spawn(3).join()
    for rank in range(3):
        story.end(rank)
    assert isinstance(story.state.phase, Running)
    story.join(3).end(3).clear().close()
    assert story.outcome() == ("succeeded", "")
