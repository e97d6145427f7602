"""The state machine: what follows when a rank fails: another backend, a restart, or what the profile says."""

import pytest

from engine.core.run import actions as act
from engine.core.run.state import Alive, Ended, Holding, Pending, Stopping, rank_word, root_cause, run_word
from engine.core.views.story import tell_all
from tests.run_story import TWO, Story


@pytest.mark.parametrize("policy", ["hold", "stop", "restart"])
def test_a_process_group_that_can_not_be_set_up_is_tried_on_the_next_backend(policy: str) -> None:
    story = Story(TWO, policy, backends=("mpi", "nccl", "gloo")).run().end(2, 1, setup_error="no mpi4py")
    assert story.actions == (act.StopRanks(node="a", attempt=0), act.StopRanks(node="b", attempt=0))
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == "mpi failed on b, rank 2: no mpi4py; running on nccl"
    story.end(0, -2).end(1, -2).clear()
    assert (story.state.attempt, story.state.backend, story.state.start_together) == (1, "nccl", "")
    story.open_store().spawn().end(0, 1, setup_error="no GPU").end(1, -2).end(2, -2).clear()
    assert (story.state.attempt, story.state.backend, story.state.fallback) == (2, "gloo", ())
    story.open_store().spawn().end(0, 1, setup_error="no route")
    words = {"hold": "holding", "stop": "running", "restart": "starting"}
    assert run_word(story.state) == words[policy]
    assert story.state.restarts == (1 if policy == "restart" else 0)


def test_a_rank_whose_group_stood_is_no_reason_for_another_backend() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1)
    assert isinstance(story.state.phase, Holding)
    assert Story(backends=("nccl",)).run().end(1, 1, setup_error="no GPU").state.backend == "nccl"


@pytest.mark.parametrize("status", [-9, -15])
def test_a_rank_that_was_killed_while_it_set_its_group_up_tells_nothing_of_the_backend(status: int) -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, status, setup_error="killed", by="alice")
    assert (run_word(story.state), story.state.backend) == ("holding", "nccl")
    crashed = Story(backends=("nccl", "gloo")).run().end(1, -11, setup_error="SIGSEGV")
    assert isinstance(crashed.state.phase, Stopping)


@pytest.mark.parametrize("first", [0, 2])
def test_whichever_end_is_heard_of_first_the_one_that_caused_it_decides_on_the_backend(first: int) -> None:
    story = Story(TWO, backends=("nccl", "gloo")).run()
    for rank in (first, 2 - first):
        if rank == 0:
            story.end(0, 1, secondary=True, setup_error="Connection closed by peer")
        else:
            story.end(2, 1, setup_error="no GPU")
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == "nccl failed on b, rank 2: no GPU; running on gloo"


@pytest.mark.parametrize("nodes", [(("a", (0,)),), (("a", (0, 1)),)])
def test_that_another_backend_takes_over_is_told_once_with_the_rank_that_is_why(
    nodes: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    story = Story(nodes, backends=("nccl", "gloo")).run().end(0, 1, setup_error="rank 1: leaves the group")
    for rank in nodes[0][1][1:]:
        story.end(rank, -2)
    told = [line.text for line in tell_all(story.journal) if "running on gloo" in line.text]
    assert told == ["rank 0 failed: exit 1; nccl failed on a, rank 0: rank 1: leaves the group; running on gloo"]


def test_a_rejoin_that_fails_keeps_its_backend() -> None:
    story = Story(TWO, backends=("gloo", "mpi")).run().join().end(1, -9).restart().spawn(1).end(1, 1, setup_error="x")
    assert (run_word(story.state), story.state.backend) == ("holding", "gloo")


def test_a_user_who_stops_while_the_next_backend_is_coming_is_obeyed() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1, setup_error="no GPU").stop().end(0, -2).clear().close()
    assert story.outcome() == ("stopped", "stopped by alice")


def test_a_restart_goes_on_with_the_backend_that_took_over() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1, setup_error="no GPU").end(0, -2).clear()
    story.open_store().spawn().end(0).end(1).clear().close()
    assert story.restart().state.backend == "gloo"


def test_a_failure_holds_the_others_until_a_user_decides() -> None:
    story = Story().run().end(1, 1)
    assert story.actions == ()
    assert run_word(story.state) == "holding"
    assert isinstance(story.state.ranks[0], Alive)
    assert story.restart().actions == (act.StopRanks(node="a", attempt=0),)
    assert run_word(story.state) == "starting"
    assert story.end(0, -2).actions == (act.ClearNode(node="a", attempt=0),)
    assert story.clear().actions == (act.OpenStore(node="a", attempt=1),)
    assert story.state.attempt == 1
    assert story.state.ranks == (Pending(), Pending())


def test_a_failure_ends_the_run_where_the_profile_says_stop() -> None:
    story = Story(on_failure="stop").run().end(1, -9)
    assert story.actions == (act.StopRanks(node="a", attempt=0),)
    assert story.end(0, -2).clear().close().outcome() == ("failed", "rank 1: SIGKILL")


def test_automatic_restarts_are_counted() -> None:
    story = Story(on_failure="restart", restarts=1).run().end(1, 1).end(0, -2).clear().open_store().spawn()
    assert (story.state.attempt, story.state.restarts) == (1, 1)
    story.end(0, 3).end(1, -2).clear().close()
    assert story.outcome() == ("failed", "rank 0: exit 3, after 1 restarts")


def test_a_restart_by_a_user_gives_automatic_restarts_back() -> None:
    story = Story(on_failure="restart", restarts=1).run().end(1, 1).end(0, -2).clear().open_store().spawn()
    story.end(0, 3).end(1, -2).clear().close().restart().run()
    assert (story.state.attempt, story.state.restarts) == (2, 0)


PLACE = "ValueError: bad at train.py:7"


def test_the_same_exception_at_the_same_place_after_the_same_step_ends_automatic_restarts() -> None:
    story = Story(on_failure="restart", restarts=5).run().end(1, 1, after=50, place=PLACE)
    story.end(0, -2).clear().open_store().spawn().end(1, 1, after=50, place=PLACE).end(0, -2).clear().close()
    why = "two attempts raised the same exception at the same place after step 50"
    assert story.outcome() == ("failed", f"rank 1: exit 1; restart: no, because {why}")
    assert isinstance(story.state.phase, Ended)
    assert story.state.phase.outcome.no_restart == why


@pytest.mark.parametrize(("place", "after"), [("KeyError: 3 at train.py:9", None), (PLACE, 4), ("", None)])
def test_another_place_or_another_step_is_another_failure(place: str, after: int | None) -> None:
    story = Story(on_failure="restart", restarts=5).run().end(1, 1, place=PLACE).end(0, -2).clear().open_store().spawn()
    story.end(1, 1, after=after, place=place).end(0, -2).clear().open_store().spawn()
    assert (story.state.attempt, story.state.restarts) == (2, 2)


def test_a_cause_that_does_not_heal_is_not_tried_again_unless_the_profile_insists() -> None:
    story = (
        Story(on_failure="restart", restarts=5)
        .run()
        .end(1, 1, no_retry="there is no module x")
        .end(0, -2)
        .clear()
        .close()
    )
    assert story.outcome() == ("failed", "rank 1: exit 1; restart: no, because there is no module x")
    story = Story(on_failure="restart", restarts=5, restart_when="always").run()
    for attempt in (1, 2):
        story.end(1, 1, no_retry="there is no module x", place=PLACE).end(0, -2).clear().open_store().spawn()
        assert story.state.attempt == attempt


def test_a_user_may_try_again_what_failed_twice() -> None:
    story = Story(on_failure="restart", restarts=5).run().end(1, 1, place=PLACE).end(0, -2).clear().open_store().spawn()
    story.end(1, 1, place=PLACE).end(0, -2).clear().close().restart().run().end(1, 1, place=PLACE)
    assert (story.state.restarts, story.state.failed_at) == (1, (PLACE, None))


def test_a_rank_that_blames_another_withholds_no_restart() -> None:
    story = Story(on_failure="restart", restarts=5).run().end(1, 1, secondary=True, no_retry="x", place=PLACE)
    assert story.state.restarts == 1


def test_the_root_cause_is_the_first_failure_that_blames_nobody_else() -> None:
    story = Story(TWO).run().end(0, 1, secondary=True).end(2, -9).end(1, 1)
    cause = root_cause(story.state)
    assert cause is not None
    assert cause[0] == 2


def test_a_secondary_failure_is_the_cause_while_no_other_is_known() -> None:
    cause = root_cause(Story(TWO).run().end(0, 1, secondary=True).state)
    assert cause is not None
    assert cause[0] == 0


@pytest.mark.parametrize(
    ("policy", "reason"), [("stop", "rank 2: exit 42"), ("restart", "rank 2: exit 42; restart 1 of 3")]
)
def test_a_rank_that_failed_by_itself_is_the_cause_although_the_run_was_being_stopped(policy: str, reason: str) -> None:
    story = Story(TWO, policy).run().end(0, 1, secondary=True).end(2, 42, by_itself=True)
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == reason
    story.end(1, -15)
    cause = root_cause(story.state)
    assert cause is not None
    assert cause[0] == 2
    assert [rank_word(phase) for phase in story.state.ranks] == ["failed", "stopped", "failed"]


def test_what_ends_by_itself_while_a_user_stops_the_run_is_no_failure() -> None:
    story = Story(TWO).run().stop().end(0, -2).end(2, 1, by_itself=True).end(1, -2)
    assert root_cause(story.state) is None


def test_a_rank_that_blames_another_is_not_the_cause_if_the_run_was_being_stopped() -> None:
    story = Story(TWO, "stop").run().end(0, 1).end(2, 1, by_itself=True, secondary=True).end(1, -15)
    assert [rank_word(phase) for phase in story.state.ranks] == ["failed", "stopped", "stopped"]


def test_a_restart_by_a_user_keeps_its_reason_whatever_is_seen_to_have_failed_first() -> None:
    story = Story(TWO, "stop").run().end(0, 1, secondary=True).restart().end(2, 42, by_itself=True)
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == "restarted by alice"
