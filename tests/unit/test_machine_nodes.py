"""The state machine: nodes, their links and the store."""

from collections.abc import Callable

import pytest

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.machine import replay
from engine.core.run.state import Alive, Gone, Holding, Pending, Running, ends_with_job, rank_word, run_word
from tests.run_story import TWO, Story, continued, given_up, rejoining, without_b


def test_a_node_that_can_not_be_reached_ends_a_run_that_never_began() -> None:
    story = Story(TWO).connect("a")
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="Permission denied"))
    assert story.actions == (act.CloseNode(node="a"),)
    assert story.close().outcome() == ("failed", "b: Permission denied")


def test_a_run_that_can_not_begin_tells_of_every_node_that_is_not_there() -> None:
    story = Story(TWO)
    story.tell(ev.NodeGivenUp(at=story.at(), node="a", reason="no route"))
    assert story.actions == ()
    assert run_word(story.state) == "starting"
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="Permission denied"))
    assert story.outcome() == ("failed", "a: no route; b: Permission denied")


@pytest.mark.parametrize("on_failure", ["hold", "stop", "restart"])
def test_a_run_with_a_spare_node_waits_to_go_on_there_when_it_loses_one(on_failure: str) -> None:
    story = given_up(without_b(Story(TWO, on_failure, spare_nodes=1).run()))
    assert act.StopRanks in map(type, story.actions)
    story.end(0, -15).end(1, -15).clear().close()
    word, reason = story.outcome()
    assert word == "queued"
    assert reason.startswith("stopped by the loss of b")
    assert continued(story).state.spare_nodes == 0
    assert run_word(story.state) == "starting"


@pytest.mark.parametrize("on_failure", ["hold", "stop", "restart"])
def test_ranks_of_a_lost_node_rejoin_on_a_spare_one(on_failure: str) -> None:
    story = given_up(without_b(rejoining(on_failure, spare_names=("s", "t"))))
    assert story.actions[0] == act.OpenNode(node="s")
    assert [action.news for action in story.actions if isinstance(action, act.TellRanks)] == [
        ("lost", 0),
        ("generation", 1),
    ]
    assert [(node.name, node.ranks) for node in story.state.nodes] == [("a", (0, 1)), ("s", (2, 3))]
    assert (story.state.spare_nodes, story.state.spare_names, story.state.restarts) == (1, ("t",), 0)
    story.connect("s")
    spawns = [action for action in story.actions if isinstance(action, act.SpawnRanks)]
    assert [(one.node, one.ranks, one.generations) for one in spawns] == [("s", (2, 3), (1, 1))]
    story.spawn(2, 3).join()
    assert (story.state.attempt, story.state.generation, run_word(story.state)) == (0, 1, "running")
    assert [rank.pid for rank in story.state.ranks[:2] if isinstance(rank, Alive)] == [100, 101]
    assert replay(story.journal) == story.state


def test_a_spare_node_that_is_lost_too_gives_its_place_to_the_next() -> None:
    story = given_up(without_b(rejoining(spare_names=("s", "t"))))
    story.tell(ev.NodeGivenUp(at=story.at(), node="s", reason="no route"))
    assert [node.name for node in story.state.nodes] == ["a", "t"]
    story.tell(ev.NodeGivenUp(at=story.at(), node="t", reason="no route"))
    assert run_word(story.state) == "holding"
    assert isinstance(story.state.ranks[0], Alive)


@pytest.mark.parametrize(
    "story",
    [
        lambda: given_up(without_b(Story(TWO, spare_names=("s",)).run())),
        lambda: given_up(without_b(Story(TWO, spare_names=("s",)).run().join().end(2))),
    ],
    ids=["not elastic", "a rank has finished"],
)
def test_ranks_that_can_not_rejoin_wait_to_start_again_on_a_spare_node(story: Callable[[], Story]) -> None:
    ending = story().end(0, -15).end(1, -15).clear().close()
    assert run_word(ending.state) == "queued"
    assert [node.name for node in ending.state.nodes] == ["a", "b"]


def test_the_first_node_has_no_replacement() -> None:
    story = rejoining(spare_names=("s",))
    story.tell(ev.NodeGivenUp(at=story.at(), node="a", reason="no route"))
    assert [node.name for node in story.state.nodes] == ["a", "b"]


def test_a_run_that_never_began_goes_on_with_a_spare_node_too() -> None:
    story = given_up(Story(TWO, spare_nodes=1).connect("a"))
    assert run_word(story.close().state) == "queued"


def test_a_run_whose_only_node_is_never_reached_goes_on_with_a_spare_node() -> None:
    assert run_word(given_up(Story((("b", (0,)),), spare_nodes=1)).state) == "queued"


def test_a_run_that_is_being_stopped_needs_no_spare_node() -> None:
    story = given_up(without_b(Story(TWO, spare_nodes=1).run()).stop())
    story.end(0, -15).end(1, -15).clear().close()
    assert run_word(story.state) == "stopped"


def test_a_run_that_ends_while_a_node_is_away_says_what_may_be_left() -> None:
    story = without_b(Story(TWO).run()).stop().end(0, -2).end(1, -2)
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    assert story.clear().close().outcome() == (
        "stopped",
        "stopped by alice; b could not be reached: processes there end with its lease",
    )


def test_a_job_that_is_over_ends_the_run_at_once() -> None:
    story = Story(TWO).run()
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm's job 1 has reached its time limit"))
    assert story.actions == ()
    assert story.outcome() == ("failed", "Slurm's job 1 has reached its time limit")
    assert {rank_word(rank) for rank in story.state.ranks} == {"lost"}


def test_a_job_that_is_over_while_its_run_is_stopped_changes_nothing_of_that() -> None:
    story = Story(TWO).run().stop()
    story.tell(ev.JobEnded(at=story.at(), reason="x"))
    assert story.outcome() == ("stopped", "stopped by alice")
    assert {rank_word(rank) for rank in story.state.ranks} == {"stopped"}


def test_ends_of_ranks_that_slurm_ends_are_no_failures_and_slurm_tells_why() -> None:
    story = Story(TWO, on_failure="restart").run()
    story.tell(ev.JobEnding(at=story.at(), reason="Slurm ends job 1"))
    assert story.actions == tuple(act.StopRanks(node=node, attempt=0, at_once=False) for node in "ab")
    story.end(0, 0).end(1, -15).end(2, 1)
    found = ev.Found(told_at=1.0, newest=ev.Checkpoint(name="step_3", at=2.0, step=3))
    story.tell(ev.CheckpointsFound(at=story.at(), attempt=0, found=found))
    story.clear().close()
    assert run_word(story.state) == "running", "it waits for the reason"
    assert ends_with_job(story.state), "which the next supervisor asks for, too"
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm's job 1 was preempted by another job"))
    assert not ends_with_job(story.state)
    assert story.outcome() == ("failed", "Slurm's job 1 was preempted by another job")
    assert {rank_word(rank) for rank in story.state.ranks} == {"stopped"}
    assert story.state.saved is not None


def test_a_restart_gives_way_to_the_end_of_the_job() -> None:
    story = Story(TWO, on_failure="restart", restarts=1).run().end(0, 1)
    story.tell(ev.JobEnding(at=story.at(), reason="Slurm ends job 1"))
    story.end(1, -15).end(2, -15).clear().close()
    assert (story.state.attempt, run_word(story.state)) == (0, "running")


def left_its_job() -> Story:
    return Story(TWO).run().stop(again=True).end(0, -2).end(1, -2).end(2, -2).clear().close()


def test_another_job_continues_a_run_as_its_next_attempt_on_other_nodes() -> None:
    story = left_its_job()
    assert run_word(story.state) == "queued"
    assert continued(story).actions == (act.OpenNode(node="c"), act.OpenNode(node="d"))
    assert (story.state.attempt, run_word(story.state)) == (1, "starting")
    assert story.connect("c", "d").actions == (act.OpenStore(node="c", attempt=1),)


def test_a_run_that_waits_for_another_job_ends_with_it() -> None:
    story = left_its_job()
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm's job 2 was cancelled"))
    assert story.outcome() == ("failed", "Slurm's job 2 was cancelled")


def test_a_job_that_reaches_its_limit_before_all_ranks_have_stopped_is_continued_too() -> None:
    story = Story(TWO).run().stop(again=True).end(0, -2)
    story.tell(ev.JobEnded(at=story.at(), reason="Slurm's job 1 has reached its time limit"))
    assert run_word(story.state) == "queued"


def test_a_user_stops_a_run_that_another_job_would_continue() -> None:
    for story in (Story(TWO).run().stop(again=True), left_its_job()):
        story.stop()
        for rank in range(3):
            if rank_word(story.state.ranks[rank]) == "running":
                story.end(rank, -2)
        if run_word(story.state) != "stopped":
            story.clear().close()
        assert story.outcome() == ("stopped", "stopped by alice")


def test_only_a_job_with_as_many_ranks_continues_a_run() -> None:
    story = left_its_job()
    story.tell(ev.RunContinued(at=story.at(), job="7", nodes=(("c", (0, 1)),)))
    assert story.actions == (act.Ignore(reason="the run has 3 ranks, and the job 2"),)
    running = Story(TWO).run()
    running.tell(ev.RunContinued(at=running.at(), job="7", nodes=TWO))
    assert running.actions == (act.Ignore(reason="the run does not wait for a job"),)


def test_what_an_earlier_attempt_left_on_a_node_that_was_given_up_is_ended_first() -> None:
    story = without_b(Story(TWO).run()).restart().end(0, -2).end(1, -2)
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    story.clear()
    assert story.state.attempt == 1
    known = (ev.KnownRank(attempt=0, rank=2, pid=102),)
    story.tell(ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=known))
    assert story.actions == (act.ClearNode(node="b", attempt=0), act.OpenStore(node="a", attempt=1))


def test_what_can_not_be_killed_is_told() -> None:
    story = Story().run().end(0).end(1).clear(4242).close()
    assert story.outcome() == ("succeeded", "could not kill process 4242 on a")


def test_a_store_that_can_not_start_fails_the_run() -> None:
    story = Story().connect()
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="no torch"))
    assert story.actions == (act.ClearNode(node="a", attempt=0),)
    assert story.clear().close().outcome() == ("failed", "the store could not start: no torch")


def test_a_store_that_ends_under_running_ranks_is_noted_and_nothing_else() -> None:
    story = Story().run()
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="killed"))
    assert story.actions == ()
    assert story.state.store_trouble == "killed"


def test_a_store_is_lost_once_however_many_agents_report_it() -> None:
    story = Story().run()
    for _ in range(3):
        story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="killed"))
    assert [type(event) for event in story.journal].count(ev.StoreLost) == 1


def test_a_link_that_breaks_leaves_its_ranks_alone() -> None:
    story = without_b(Story(TWO).run())
    assert story.actions == (act.OpenNode(node="b"),)
    assert run_word(story.state) == "running"
    actions = story.tell(
        ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=(ev.KnownRank(attempt=0, rank=2, pid=102),))
    )
    assert actions == ()


def test_what_happened_while_nobody_listened_is_taken_over() -> None:
    story = without_b(Story(TWO).run())
    story.tell(
        ev.NodeConnected(
            at=story.at(), node="b", agent_pid=7, ranks=(ev.KnownRank(attempt=0, rank=2, pid=102, status=1),)
        )
    )
    assert isinstance(story.state.phase, Holding)
    assert rank_word(story.state.ranks[2]) == "failed"


def test_a_rank_that_the_agent_does_not_know_is_lost() -> None:
    story = without_b(Story(TWO).run()).connect("b")
    assert isinstance(story.state.ranks[2], Gone)


def test_a_spawn_whose_answer_was_lost_is_not_repeated() -> None:
    story = Story().connect().open_store()
    story.tell(ev.NodeDisconnected(at=story.at(), node="a", reason="x"))
    known = (ev.KnownRank(attempt=0, rank=0, pid=100),)
    story.tell(ev.NodeConnected(at=story.at(), node="a", agent_pid=7, ranks=known))
    assert story.actions == (
        act.SpawnRanks(node="a", attempt=0, ranks=(1,), address="127.0.0.1", port=4000, generations=(0,)),
    )
    assert story.state.ranks == (Alive(pid=100, since=story.now), Pending())


def test_a_store_whose_answer_was_lost_serves_every_node() -> None:
    story = Story(TWO).connect()
    story.tell(ev.NodeDisconnected(at=story.at(), node="a", reason="x"))
    story.tell(ev.NodeConnected(at=story.at(), node="a", agent_pid=7))
    assert story.actions == (act.OpenStore(node="a", attempt=0),)
    assert story.open_store().actions == (
        act.SpawnRanks(node="a", attempt=0, ranks=(0, 1), address="127.0.0.1", port=4000, generations=(0, 0)),
        act.SpawnRanks(node="b", attempt=0, ranks=(2,), address="127.0.0.1", port=4000, generations=(0,)),
    )


def test_a_node_that_is_given_up_while_starting_costs_the_next_attempt_no_rank() -> None:
    story = Story(on_failure="restart").connect().open_store().spawn(0)
    story.tell(ev.NodeGivenUp(at=story.at(), node="a", reason="no route"))
    assert story.state.attempt == 1
    assert story.state.ranks == (Pending(), Pending())
    assert story.run().state.phase == Running()


def test_a_node_that_speaks_after_the_end_is_closed_and_forgotten() -> None:
    story = Story().run().end(0).end(1).clear().close()
    ended = story.state
    assert story.connect().actions == (act.CloseNode(node="a"),)
    assert story.state == ended
    assert story.restart().actions == (act.OpenNode(node="a"),)


def test_a_new_supervisor_connects_again_and_changes_nothing_else() -> None:
    story = Story(TWO).run()
    ranks = story.state.ranks
    story.tell(ev.SupervisorStarted(at=story.at(), pid=9))
    assert story.actions == (act.OpenNode(node="a"), act.OpenNode(node="b"))
    assert story.state.ranks == ranks
    assert story.state.phase == Running()


def test_late_news_of_a_start_brings_no_rank_back_to_life() -> None:
    story = Story().connect().open_store().spawn(0).end(0)
    before = story.state
    assert story.spawn(0).actions == (act.Ignore(reason="rank 0 has started already"),)
    assert story.state is before
