"""The state machine: every event in every phase, and any story that faithful agents can tell."""

from __future__ import annotations

import itertools
import typing
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent
from engine.core.run.machine import (
    FRUITLESS_LIMIT,
    MAKES_WAY,
    RESTART_GUARD,
    UNREACHABLE_PATIENCE,
    launch,
    replay,
    step,
    why_no_rejoin,
)
from engine.core.run.state import (
    ENDED_WORDS,
    Alive,
    Clearing,
    Closing,
    Done,
    Ended,
    Gone,
    Holding,
    Node,
    Outcome,
    Pending,
    Phase,
    Restart,
    Running,
    RunState,
    Starting,
    Stopping,
    rank_word,
    root_cause,
    run_word,
    status_words,
)
from engine.core.views.story import tell_all

DATA = Path(__file__).parent.parent / "data"


class Story:
    """A run that is told event by event, as the supervisor does it."""

    def __init__(
        self,
        nodes: tuple[tuple[str, tuple[int, ...]], ...] = (("a", (0, 1)),),
        on_failure: str = "hold",
        restarts: int = 3,
        backends: tuple[str, ...] = (),
    ) -> None:
        first = ev.RunLaunched(
            at=0.0,
            run="x-1",
            name="x",
            nodes=nodes,
            on_failure=on_failure,
            max_restarts=restarts,
            one_fate="one mpirun is one fate" if backends[:1] == ("mpi",) else "",
            backend="".join(backends[:1]),
            spares=tuple(ev.Spare(backend=backend) for backend in backends[1:]),
        )
        self.journal: list[AnyEvent] = [first]
        self.state, self.actions = launch(first)
        self.now = 0.0

    def tell(self, event: AnyEvent) -> tuple[AnyAction, ...]:
        before = self.state
        state, actions = step(before, event)
        self.now = event.at
        self.actions = actions
        if state is not before or not any(isinstance(action, act.Ignore) for action in actions):
            self.journal.append(event)
            self.state = state
        return actions

    def at(self) -> float:
        return self.now + 10

    # what happens most often

    def connect(self, *names: str) -> Story:
        for name in names or [node.name for node in self.state.nodes]:
            self.tell(ev.NodeConnected(at=self.at(), node=name, agent_pid=7))
        return self

    def open_store(self) -> Story:
        head = self.state.nodes[0].name
        self.tell(ev.StoreOpened(at=self.at(), attempt=self.state.attempt, node=head, port=4000 + self.state.attempt))
        return self

    def spawn(self, *ranks: int) -> Story:
        for rank in ranks or range(len(self.state.ranks)):
            generation = self.state.generation_of(rank)
            spawned = ev.RankSpawned(
                at=self.at(), attempt=self.state.attempt, rank=rank, pid=100 + rank, generation=generation
            )
            self.tell(spawned)
        return self

    def run(self) -> Story:
        return self.connect().open_store().spawn()

    def end(
        self,
        rank: int,
        status: int = 0,
        *,
        after: int | None = None,
        secondary: bool = False,
        forming: str = "",
        by: str = "",
    ) -> Story:
        self.tell(
            ev.RankEnded(
                at=self.at(),
                attempt=self.state.attempt,
                rank=rank,
                status=status,
                step=after,
                secondary=secondary,
                forming=forming,
                by=by,
                generation=self.state.generation_of(rank),
            )
        )
        return self

    def join(self, *ranks: int) -> Story:
        generation = self.state.generation
        for rank in ranks or range(len(self.state.ranks)):
            self.tell(ev.RankJoined(at=self.at(), attempt=self.state.attempt, rank=rank, generation=generation, step=7))
        return self

    def stop(self, *, at_once: bool = False) -> Story:
        self.tell(ev.StopRequested(at=self.at(), by="alice", at_once=at_once))
        return self

    def restart(self) -> Story:
        self.tell(ev.RestartRequested(at=self.at(), by="alice"))
        return self

    def clear(self, *abandoned: int) -> Story:
        for node in self.state.nodes:
            self.tell(ev.NodeCleared(at=self.at(), attempt=self.state.attempt, node=node.name, abandoned=abandoned))
        return self

    def close(self) -> Story:
        for node in self.state.nodes:
            self.tell(ev.NodeClosed(at=self.at(), node=node.name))
        return self

    def outcome(self) -> tuple[str, str]:
        assert isinstance(self.state.phase, Ended)
        return self.state.phase.outcome.word, self.state.phase.outcome.reason


TWO = (("a", (0, 1)), ("b", (2,)))

SITUATIONS: dict[str, Callable[[], Story]] = {
    "opening": lambda: Story(TWO),
    "opening, one node there": lambda: Story(TWO).connect("a"),
    "opening again": lambda: Story(TWO).run().end(0, 1).restart().end(1).end(2).clear(),
    "starting, no store": lambda: Story(TWO).connect(),
    "starting": lambda: Story(TWO).connect().open_store().spawn(0),
    "running": lambda: Story(TWO).run(),
    "running, one done": lambda: Story(TWO).run().end(1),
    "running, a node away": lambda: _without_b(Story(TWO).run()),
    "holding": lambda: Story(TWO).run().end(1, 1),
    "holding, a node given up": lambda: _given_up(Story(TWO).run()),
    "holding, can rejoin": lambda: Story(TWO).run().join(0).end(1, 1),
    "rejoining": lambda: Story(TWO).run().join(0).end(1, 1).restart(),
    "rejoined": lambda: Story(TWO).run().join(0).end(1, 1).restart().spawn(1),
    "stopping": lambda: Story(TWO).run().stop(),
    "stopping to fail": lambda: Story(TWO, "stop").run().end(1, 1),
    "stopping to restart": lambda: Story(TWO).run().end(1, 1).restart(),
    "stopping to fall back": lambda: Story(TWO, backends=("nccl", "gloo")).run().end(1, 1, forming="no GPU"),
    "clearing": lambda: Story(TWO).run().end(0).end(1).end(2),
    "clearing to fail": lambda: Story(TWO, "stop").run().end(1, 1).end(0).end(2),
    "clearing to restart": lambda: Story(TWO).run().end(1, 1).restart().end(0).end(2),
    "closing": lambda: Story(TWO).run().end(0).end(1).end(2).clear(),
    "ended": lambda: Story(TWO).run().end(0).end(1).end(2).clear().close(),
    "ended, stopped": lambda: Story(TWO).run().stop().end(0).end(1).end(2).clear().close(),
}


def _without_b(story: Story) -> Story:
    story.tell(ev.NodeDisconnected(at=story.at(), node="b", reason="link lost"))
    return story


def _given_up(story: Story) -> Story:
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    return story


EVENTS: tuple[AnyEvent, ...] = (
    ev.RunLaunched(at=5e3, run="y", name="y", nodes=TWO, on_failure="hold", max_restarts=1),
    ev.SupervisorStarted(at=5e3, pid=9),
    *(
        ev.NodeConnected(at=5e3, node=node, agent_pid=7, ranks=ranks)
        for node in ("a", "b", "z")
        for ranks in (
            (),
            (ev.KnownRank(attempt=0, rank=0, pid=100), ev.KnownRank(attempt=0, rank=1, pid=101, status=1)),
            (ev.KnownRank(attempt=0, rank=2, pid=102, status=0), ev.KnownRank(attempt=9, rank=99, pid=102)),
        )
        for store in (None, (0, 4000), (8, 4000))
    ),
    *(ev.NodeDisconnected(at=5e3, node=node, reason="x") for node in ("a", "b", "z")),
    *(ev.NodeGivenUp(at=5e3, node=node, reason="x") for node in ("a", "b", "z")),
    *(ev.NodeWarned(at=5e3, node=node, check="disk", text="x", fails=False) for node in ("a", "z")),
    *(
        ev.NodeCleared(at=5e3, attempt=attempt, node=node, abandoned=abandoned)
        for attempt in (-1, 0, 1, 9)
        for node in ("a", "z")
        for abandoned in ((), (4242,))
    ),
    *(ev.NodeClosed(at=5e3, node=node) for node in ("a", "b", "z")),
    *(ev.StoreOpened(at=5e3, attempt=attempt, node="a", port=1) for attempt in (0, 1, 9)),
    *(ev.StoreLost(at=5e3, attempt=attempt, reason="x") for attempt in (0, 1, 9)),
    *(ev.RankSpawned(at=5e3, attempt=attempt, rank=rank, pid=1) for attempt in (0, 1, 9) for rank in (-1, 0, 1, 2, 3)),
    *(
        ev.RankEnded(at=5e3, attempt=attempt, rank=rank, status=status, step=3, secondary=status < 0)
        for attempt in (0, 1, 9)
        for rank in (-1, 0, 1, 2, 3)
        for status in (0, 1, -9)
    ),
    *(ev.RankLost(at=5e3, attempt=attempt, rank=rank, reason="x") for attempt in (0, 1, 9) for rank in (-1, 0, 2, 3)),
    *(
        ev.RankJoined(at=5e3, attempt=attempt, rank=rank, generation=generation)
        for attempt in (0, 1)
        for rank in (-1, 0, 2)
        for generation in (0, 1, 2)
    ),
    *(ev.RankSpawned(at=5e3, attempt=0, rank=rank, pid=1, generation=1) for rank in (0, 1)),
    *(ev.RankEnded(at=5e3, attempt=0, rank=rank, status=1, generation=1) for rank in (0, 1)),
    *(ev.StopRequested(at=5e3, by="bob", at_once=at_once) for at_once in (False, True)),
    *(ev.RestartRequested(at=5e3, by="bob", scope=scope) for scope in typing.get_args(ev.Scope)),
    *(ev.KillRequested(at=5e3, by="bob", rank=rank, signal=9) for rank in (-1, 0, 1, 2, 3)),
)


def test_every_event_and_every_phase_is_tried() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(ev.AnyEvent))
    assert {type(make().state.phase) for make in SITUATIONS.values()} == set(typing.get_args(Phase))
    ends = {
        (type(phase), type(phase.then))
        for phase in (make().state.phase for make in SITUATIONS.values())
        if isinstance(phase, Stopping | Clearing)
    }
    assert ends == set(itertools.product((Stopping, Clearing), (Outcome, Restart)))


@pytest.mark.parametrize("policy", ["hold", "stop", "restart"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_event_in_every_phase_changes_something_or_is_ignored_for_a_reason(situation: str, policy: str) -> None:
    state = msgspec.structs.replace(SITUATIONS[situation]().state, on_failure=policy)
    for event in EVENTS:
        after, actions = step(state, event)
        assert after is not state or actions, event
        for action in actions:
            if isinstance(action, act.Ignore):
                assert action.reason
            else:
                assert after.node(getattr(action, "node", "")) is not None, (event, action)
        check_words(after)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_state_and_its_journal_survive_json(situation: str) -> None:
    story = SITUATIONS[situation]()
    assert msgspec.json.decode(msgspec.json.encode(story.state), type=RunState) == story.state
    lines = [msgspec.json.encode(event) for event in story.journal]
    assert replay(msgspec.json.decode(line, type=ev.AnyEvent) for line in lines) == story.state


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_of_another_attempt_rank_or_node_is_news(situation: str) -> None:
    state = SITUATIONS[situation]().state
    for event in EVENTS:
        foreign = (
            getattr(event, "attempt", state.attempt) != state.attempt
            or not 0 <= getattr(event, "rank", 0) < len(state.ranks)
            or getattr(event, "node", "a") == "z"
        )
        if foreign:
            after, actions = step(state, event)
            assert after is state
            assert [type(action) for action in actions] == [act.Ignore]


def check_words(state: RunState) -> None:
    """What the words of a run promise of each other."""
    words = [rank_word(phase) for phase in state.ranks]
    word = run_word(state)
    assert (word in ENDED_WORDS) == isinstance(state.phase, Ended)
    if word == "holding":
        assert root_cause(state) is not None
    if word == "succeeded":
        assert set(words) == {"exited"}
    if isinstance(state.phase, Starting | Running):
        assert root_cause(state) is None
        assert not {"failed", "lost", "stopped"} & set(words)
    if isinstance(state.phase, Running):
        assert "starting" not in words
    if isinstance(state.phase, Stopping):
        assert "running" in words
    if isinstance(state.phase, Clearing | Closing | Ended):
        assert "running" not in words
    if isinstance(state.phase, Ended):
        assert all(node.link in ("closed", "given-up") for node in state.nodes)


# --- the stories that matter most, told step by step -----------------------------------------------------------------


def test_a_run_of_one_node_from_launch_to_success() -> None:
    story = Story()
    assert story.actions == (act.OpenNode(node="a"),)
    assert story.connect().actions == (act.OpenStore(node="a", attempt=0),)
    assert story.open_store().actions == (
        act.SpawnRanks(node="a", attempt=0, ranks=(0, 1), address="127.0.0.1", port=4000, generations=(0, 0)),
    )
    story.spawn(0)
    assert run_word(story.state) == "starting"
    story.spawn(1)
    assert run_word(story.state) == "running"
    assert story.end(1).actions == ()
    assert story.end(0).actions == (act.ClearNode(node="a", attempt=0),)
    assert story.clear().actions == (act.CloseNode(node="a"),)
    assert story.close().outcome() == ("succeeded", "")


# --- another backend takes over --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["hold", "stop", "restart"])
def test_a_process_group_that_can_not_be_set_up_is_tried_on_the_next_backend(policy: str) -> None:
    story = Story(TWO, policy, backends=("mpi", "nccl", "gloo")).run().end(2, 1, forming="no mpi4py")
    assert story.actions == (act.StopRanks(node="a", attempt=0), act.StopRanks(node="b", attempt=0))
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == "mpi failed on b, rank 2: no mpi4py; running on nccl"
    story.end(0, -2).end(1, -2).clear()
    assert (story.state.attempt, story.state.backend, story.state.one_fate) == (1, "nccl", "")
    story.open_store().spawn().end(0, 1, forming="no GPU").end(1, -2).end(2, -2).clear()
    assert (story.state.attempt, story.state.backend, story.state.spares) == (2, "gloo", ())
    story.open_store().spawn().end(0, 1, forming="no route")
    words = {"hold": "holding", "stop": "running", "restart": "starting"}
    assert run_word(story.state) == words[policy]
    assert story.state.restarts == (1 if policy == "restart" else 0)


def test_a_rank_whose_group_stood_is_no_reason_for_another_backend() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1)
    assert isinstance(story.state.phase, Holding)
    assert Story(backends=("nccl",)).run().end(1, 1, forming="no GPU").state.backend == "nccl"


@pytest.mark.parametrize("status", [-9, -15])
def test_a_rank_that_was_killed_while_it_set_its_group_up_tells_nothing_of_the_backend(status: int) -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, status, forming="killed", by="alice")
    assert (run_word(story.state), story.state.backend) == ("holding", "nccl")
    crashed = Story(backends=("nccl", "gloo")).run().end(1, -11, forming="SIGSEGV")
    assert isinstance(crashed.state.phase, Stopping)


@pytest.mark.parametrize("first", [0, 2])
def test_whichever_end_is_heard_of_first_the_one_that_caused_it_decides_on_the_backend(first: int) -> None:
    story = Story(TWO, backends=("nccl", "gloo")).run()
    for rank in (first, 2 - first):
        if rank == 0:
            story.end(0, 1, secondary=True, forming="Connection closed by peer")
        else:
            story.end(2, 1, forming="no GPU")
    assert isinstance(story.state.phase, Stopping)
    assert story.state.phase.then.reason == "nccl failed on b, rank 2: no GPU; running on gloo"


@pytest.mark.parametrize("nodes", [(("a", (0,)),), (("a", (0, 1)),)])
def test_that_another_backend_takes_over_is_told_once_with_the_rank_that_is_why(
    nodes: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    story = Story(nodes, backends=("nccl", "gloo")).run().end(0, 1, forming="rank 1: leaves the group")
    for rank in nodes[0][1][1:]:
        story.end(rank, -2)
    told = [line.text for line in tell_all(story.journal) if "running on gloo" in line.text]
    assert told == ["rank 0 failed: exit 1; nccl failed on a, rank 0: rank 1: leaves the group; running on gloo"]


def test_a_rejoin_that_fails_keeps_its_backend() -> None:
    story = Story(TWO, backends=("gloo", "mpi")).run().join().end(1, -9).restart().spawn(1).end(1, 1, forming="x")
    assert (run_word(story.state), story.state.backend) == ("holding", "gloo")


def test_a_user_who_stops_while_the_next_backend_is_coming_is_obeyed() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1, forming="no GPU").stop().end(0, -2).clear().close()
    assert story.outcome() == ("stopped", "stopped by alice")


def test_a_restart_goes_on_with_the_backend_that_took_over() -> None:
    story = Story(backends=("nccl", "gloo")).run().end(1, 1, forming="no GPU").end(0, -2).clear()
    story.open_store().spawn().end(0).end(1).clear().close()
    assert story.restart().state.backend == "gloo"


# --- failures and restarts ---------------------------------------------------------------------------------------------


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


# --- rejoining


def rejoining(on_failure: str = "hold", restarts: int = 9) -> Story:
    """Four ranks that can rejoin, all of them in the first generation."""
    return Story((("a", (0, 1)), ("b", (2, 3))), on_failure, restarts).run().join()


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


def test_news_of_the_process_that_was_replaced_is_none() -> None:
    story = rejoining().end(2, -9).restart()
    before = story.state
    story.tell(ev.RankEnded(at=story.at(), attempt=0, rank=2, status=-9, generation=0))
    assert story.state is before


@pytest.mark.parametrize(
    ("story", "why"),
    [
        (lambda: Story().run().end(1, 1), "does not use rankdeck.elastic"),
        (lambda: Story().run().join().end(1, 1).end(0, 1), "no rank is left"),
        (lambda: Story(TWO).run().join().end(0, 1).end(1, 0), "rank 1 has finished"),
        (lambda: _given_up(Story(TWO).run().join()), "b was given up"),
        (lambda: _store_gone(Story(TWO).run().join()).end(2, 1), "the store is lost"),
    ],
)
def test_where_dead_ranks_can_not_rejoin_all_start_again_and_the_reason_is_said(
    story: Callable[[], Story], why: str
) -> None:
    assert why in why_no_rejoin(story().state)
    again = story().restart()
    assert any(isinstance(action, act.StopRanks | act.ClearNode) for action in again.actions)


def _store_gone(story: Story) -> Story:
    story.tell(ev.StoreLost(at=story.at(), attempt=0, reason="its process ended"))
    return story


def test_a_rank_whose_node_is_away_rejoins_when_the_node_is_back() -> None:
    story = _without_b(rejoining()).end(2, -9).restart()
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


def test_a_replacement_that_dies_again_and_again_is_given_up() -> None:
    story = rejoining("restart", restarts=99).end(2, -9, after=5)
    for _ in range(FRUITLESS_LIMIT):
        story.spawn(2).end(2, 1, after=5)
    assert isinstance(story.state.phase, Stopping)


def test_a_rank_that_makes_way_is_replaced_without_being_asked() -> None:
    story = rejoining().end(2, -9).restart().spawn(2).end(1, MAKES_WAY)
    assert story.actions == (told(2, "lost", 1), told(3, "generation", 2), spawned("a", 1, 2))
    assert story.state.restarts == 0


def test_a_head_node_that_comes_back_is_told_everything_again() -> None:
    story = rejoining().end(2, -9).restart().spawn(2)
    story.tell(ev.NodeDisconnected(at=story.at(), node="a", reason="x"))
    known = tuple(ev.KnownRank(attempt=0, rank=rank, pid=100 + rank) for rank in (0, 1))
    story.tell(ev.NodeConnected(at=story.at(), node="a", agent_pid=7, ranks=known))
    assert story.actions == (told(0, "lost", 0), told(1, "generation", 1))


# --- automatic restarts


def test_automatic_restarts_are_counted() -> None:
    story = Story(on_failure="restart", restarts=1).run().end(1, 1).end(0, -2).clear().open_store().spawn()
    assert (story.state.attempt, story.state.restarts) == (1, 1)
    story.end(0, 3).end(1, -2).clear().close()
    assert story.outcome() == ("failed", "rank 0: exit 3, after 1 restarts")


def test_a_restart_by_a_user_gives_automatic_restarts_back() -> None:
    story = Story(on_failure="restart", restarts=1).run().end(1, 1).end(0, -2).clear().open_store().spawn()
    story.end(0, 3).end(1, -2).clear().close().restart().run()
    assert (story.state.attempt, story.state.restarts) == (2, 0)


def test_automatic_restarts_end_where_attempts_get_no_further() -> None:
    story = Story(on_failure="restart", restarts=99).run().end(1, 1, after=50)
    for _ in range(FRUITLESS_LIMIT):
        story.end(0, -2).clear().open_store().spawn().end(1, 1, after=50)
    story.end(0, -2).clear().close()
    assert story.outcome() == ("failed", "rank 1: exit 1; 2 attempts in a row got no further than step 50")


def test_progress_keeps_automatic_restarts_going() -> None:
    story = Story(on_failure="restart", restarts=99).run()
    for after in range(10, 60, 10):
        story.end(1, 1, after=after).end(0, -2).clear().open_store().spawn()
    assert (story.state.restarts, story.state.fruitless, story.state.best_step) == (5, 0, 50)


def test_the_root_cause_is_the_first_failure_that_blames_nobody_else() -> None:
    story = Story(TWO).run().end(0, 1, secondary=True).end(2, -9).end(1, 1)
    cause = root_cause(story.state)
    assert cause is not None
    assert cause[0] == 2


def test_a_secondary_failure_is_the_cause_while_no_other_is_known() -> None:
    cause = root_cause(Story(TWO).run().end(0, 1, secondary=True).state)
    assert cause is not None
    assert cause[0] == 0


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
    story = _without_b(Story(TWO).run())
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


def test_a_run_that_ends_while_a_node_is_away_says_what_may_be_left() -> None:
    story = _without_b(Story(TWO).run()).stop().end(0, -2).end(1, -2)
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    assert story.clear().close().outcome() == (
        "stopped",
        "stopped by alice; b could not be reached: what runs there ends with its lease",
    )


def test_what_an_earlier_attempt_left_on_a_node_that_was_given_up_is_ended_first() -> None:
    story = _without_b(Story(TWO).run()).restart().end(0, -2).end(1, -2)
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    story.clear()
    assert story.state.attempt == 1
    known = (ev.KnownRank(attempt=0, rank=2, pid=102),)
    story.tell(ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=known))
    assert story.actions == (act.ClearNode(node="b", attempt=0), act.OpenStore(node="a", attempt=1))


def test_an_urgent_stop_does_not_wait_for_what_ranks_wrote() -> None:
    story = Story().run().end(0).end(1)
    assert story.stop(at_once=True).actions == (act.ClearNode(node="a", attempt=0, at_once=True),)


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


def test_a_link_that_breaks_leaves_its_ranks_alone() -> None:
    story = _without_b(Story(TWO).run())
    assert story.actions == (act.OpenNode(node="b"),)
    assert run_word(story.state) == "running"
    actions = story.tell(
        ev.NodeConnected(at=story.at(), node="b", agent_pid=7, ranks=(ev.KnownRank(attempt=0, rank=2, pid=102),))
    )
    assert actions == ()


def test_what_happened_while_nobody_listened_is_taken_over() -> None:
    story = _without_b(Story(TWO).run())
    story.tell(
        ev.NodeConnected(
            at=story.at(), node="b", agent_pid=7, ranks=(ev.KnownRank(attempt=0, rank=2, pid=102, status=1),)
        )
    )
    assert isinstance(story.state.phase, Holding)
    assert rank_word(story.state.ranks[2]) == "failed"


def test_a_rank_that_the_agent_does_not_know_is_lost() -> None:
    story = _without_b(Story(TWO).run()).connect("b")
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


def test_a_signal_goes_to_ranks_that_are_alive_and_reachable() -> None:
    story = _without_b(Story(TWO).run().end(1))
    kill = {rank: story.tell(ev.KillRequested(at=story.at(), by="alice", rank=rank, signal=9)) for rank in range(3)}
    assert kill[0] == (act.SignalRank(node="a", attempt=0, rank=0, signal=9),)
    assert kill[1] == (act.Ignore(reason="rank 1 has ended already"),)
    assert kill[2] == (act.Ignore(reason="b is not reachable: link lost"),)


def test_late_news_of_a_start_brings_no_rank_back_to_life() -> None:
    story = Story().connect().open_store().spawn(0).end(0)
    before = story.state
    assert story.spawn(0).actions == (act.Ignore(reason="rank 0 has started already"),)
    assert story.state is before


def test_an_empty_journal_is_no_run() -> None:
    assert replay([]) is None
    assert replay([ev.SupervisorStarted(at=1.0, pid=1)]) is None


@pytest.mark.parametrize(("status", "words"), [(0, "exit 0"), (3, "exit 3"), (-9, "SIGKILL"), (-99, "signal 99")])
def test_a_status_is_told_in_words(status: int, words: str) -> None:
    assert status_words(status) == words


# --- journals that were written by earlier versions ------------------------------------------------------------------


def test_a_journal_of_version_1_loads_for_ever() -> None:
    lines = (DATA / "journal_v1.jsonl").read_bytes().splitlines()
    state = replay(msgspec.json.decode(line, type=ev.AnyEvent) for line in lines)
    assert state == RunState(
        run="gpt-20260101-1200-abcd",
        name="gpt",
        on_failure="hold",
        max_restarts=3,
        launched_at=1767265200.0,
        phase=Ended(outcome=Outcome(word="succeeded", reason=""), at=1767265230.75),
        nodes=(
            Node(name="localhost", ranks=(0, 1, 2, 3), link="closed", since=1767265230.75, was_up=True, cleared=True),
        ),
        ranks=tuple(
            Done(
                pid=5200 + rank,
                status=0,
                at=1767265230.0,
                order=rank,
                asked=False,
                step=200,
                reason="",
                secondary=False,
            )
            for rank in range(4)
        ),
        attempt=1,
        attempt_since=1767265215.5,
        store_port=40124,
        store_address="127.0.0.1",
        ends=4,
    )


def test_the_journal_of_version_1_tells_of_a_failure_and_a_restart() -> None:
    lines = (DATA / "journal_v1.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=ev.AnyEvent) for line in lines]
    words = []
    for length in range(1, len(events) + 1):
        state = replay(events[:length])
        assert state is not None
        words.append(run_word(state))
        if words[-1] == "holding":
            cause = root_cause(state)
            assert cause is not None
            assert cause[0] == 2
    assert [word for word, _ in itertools.groupby(words)] == [
        *("starting", "running", "holding", "starting", "running", "succeeded"),
    ]


LINES_OF_VERSION_1: tuple[tuple[str, AnyEvent], ...] = (
    (
        '{"event":"NodeConnected","at":1.5,"node":"a","agent_pid":7,"ranks":[{"attempt":1,"rank":2,"pid":3,"status":-9}],'
        '"store":[1,4000]}',
        ev.NodeConnected(at=1.5, node="a", agent_pid=7, ranks=(ev.KnownRank(attempt=1, rank=2, pid=3, status=-9),)),
    ),
    (
        '{"event":"NodeDisconnected","at":1.5,"node":"a","reason":"x"}',
        ev.NodeDisconnected(at=1.5, node="a", reason="x"),
    ),
    ('{"event":"NodeGivenUp","at":1.5,"node":"a","reason":"x"}', ev.NodeGivenUp(at=1.5, node="a", reason="x")),
    (
        '{"event":"NodeWarned","at":1.5,"node":"a","check":"disk","text":"x","fails":true}',
        ev.NodeWarned(at=1.5, node="a", check="disk", text="x", fails=True),
    ),
    (
        '{"event":"NodeCleared","at":1.5,"attempt":1,"node":"a","abandoned":[7]}',
        ev.NodeCleared(at=1.5, attempt=1, node="a", abandoned=(7,)),
    ),
    ('{"event":"NodeClosed","at":1.5,"node":"a"}', ev.NodeClosed(at=1.5, node="a")),
    ('{"event":"StoreLost","at":1.5,"attempt":1,"reason":"x"}', ev.StoreLost(at=1.5, attempt=1, reason="x")),
    (
        '{"event":"RankEnded","at":1.5,"attempt":1,"rank":2,"status":1,"step":9,"reason":"x","secondary":true}',
        ev.RankEnded(at=1.5, attempt=1, rank=2, status=1, step=9, reason="x", secondary=True),
    ),
    (
        '{"event":"RankLost","at":1.5,"attempt":1,"rank":2,"reason":"x"}',
        ev.RankLost(at=1.5, attempt=1, rank=2, reason="x"),
    ),
    (
        '{"event":"RankJoined","at":1.5,"attempt":1,"rank":2,"generation":3,"step":9}',
        ev.RankJoined(at=1.5, attempt=1, rank=2, generation=3, step=9),
    ),
    (
        '{"event":"StopRequested","at":1.5,"by":"alice","at_once":true}',
        ev.StopRequested(at=1.5, by="alice", at_once=True),
    ),
)


@pytest.mark.parametrize(("line", "event"), LINES_OF_VERSION_1, ids=lambda value: type(value).__name__)
def test_lines_of_version_1_that_the_journal_lacks_load_for_ever(line: str, event: AnyEvent) -> None:
    assert msgspec.json.decode(line, type=ev.AnyEvent) == event


def test_every_event_has_a_stored_line_of_version_1() -> None:
    stored = (DATA / "journal_v1.jsonl").read_bytes().splitlines()
    stored += [line.encode() for line, _ in LINES_OF_VERSION_1]
    assert {type(msgspec.json.decode(line, type=ev.AnyEvent)) for line in stored} == set(typing.get_args(ev.AnyEvent))


# --- any story -------------------------------------------------------------------------------------------------------


class FakeNode:
    """A node, its agent, and the link to it, as the real ones behave.

    Requests and answers travel in order; a link that breaks loses both. The agent remembers its ranks, and tells of all
    of them whenever a link comes up. `lost_memory` is a reboot.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: typing.Literal["idle", "opening", "up", "down"] = "idle"
        self.closing = False
        self.requests: deque[AnyAction] = deque()
        self.answers: deque[AnyEvent] = deque()
        self.asked_to_spawn: set[tuple[int, int, int]] = set()
        """(attempt, rank, generation) that SpawnRanks named since the link came up."""
        self.reboot()

    def reboot(self) -> None:
        self.attempt = -1
        self.cleared = -1
        self.has_leftovers = False
        self.ranks: dict[int, tuple[int, int | None, int]] = {}
        """Pid, status and generation of each rank's newest process."""
        self.told_to_stop = False
        self.store: tuple[int, int] | None = None
        self.spawned: set[tuple[int, int, int]] = set()

    @property
    def living(self) -> list[int]:
        return [rank for rank, (_, status, _) in self.ranks.items() if status is None]

    def known(self) -> tuple[ev.KnownRank, ...]:
        return tuple(
            ev.KnownRank(attempt=self.attempt, rank=rank, pid=pid, status=status, generation=generation)
            for rank, (pid, status, generation) in self.ranks.items()
        )

    def end(self, rank: int, status: int, now: float) -> None:
        pid, _, generation = self.ranks[rank]
        self.ranks[rank] = (pid, status, generation)
        self.say(ev.RankEnded(at=now, attempt=self.attempt, rank=rank, status=status, generation=generation))

    def say(self, event: AnyEvent) -> None:
        if self.link == "up":
            self.answers.append(event)

    def cut(self) -> None:
        self.requests.clear()
        self.answers.clear()
        self.asked_to_spawn.clear()


SELDOM = st.sampled_from([False] * 7 + [True])
"""Guards what would end most stories early."""


class AnyStory(RuleBasedStateMachine):
    """A supervisor with a journal, and faithful agents that answer whenever they like."""

    @initialize(
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        on_failure=st.sampled_from(["hold", "stop", "restart"]),
        restarts=st.integers(0, 2),
        ranks_end_by_themselves=st.booleans(),
    )
    def launch_it(self, sizes: list[int], on_failure: str, restarts: int, ranks_end_by_themselves: bool) -> None:
        first, nodes = 0, []
        for index, size in enumerate(sizes):
            nodes.append((f"n{index}", tuple(range(first, first + size))))
            first += size
        self.now = 1000.0
        self.ranks_end_by_themselves = ranks_end_by_themselves
        self.ports = itertools.count(4000)
        self.pids = itertools.count(100)
        self.attempts = [0]
        self.nodes = {name: FakeNode(name) for name, _ in nodes}
        event = ev.RunLaunched(
            at=self.now, run="x-1", name="x", nodes=tuple(nodes), on_failure=on_failure, max_restarts=restarts
        )
        self.journal: list[AnyEvent] = [event]
        self.state, actions = launch(event)
        for action in actions:
            self.do(action)

    # the supervisor

    def handle(self, event: AnyEvent) -> None:
        before = self.state
        state, actions = step(before, event)
        for action in actions:
            assert not isinstance(action, act.Ignore) or action.reason
        if state is before and any(isinstance(action, act.Ignore) for action in actions):
            return
        self.journal.append(event)
        self.state = state
        if state.attempt != self.attempts[-1]:
            self.attempts.append(state.attempt)
        for action in actions:
            self.do(action)

    def do(self, action: AnyAction) -> None:
        if isinstance(action, act.Ignore):
            return
        node = self.nodes[action.node]
        match action:
            case act.OpenNode():
                assert node.link != "up", "opened twice"
                node.link, node.closing = "opening", False
            case act.CloseNode():
                node.closing = True
                if node.link == "up":
                    node.requests.append(action)
                assert node.link != "idle", "nobody would ever answer"
            case act.SpawnRanks():
                assert node.link == "up"
                assert action.attempt == self.state.attempt
                assert action.port == self.state.store_port
                wanted = {
                    (action.attempt, rank, generation)
                    for rank, generation in zip(action.ranks, action.generations, strict=True)
                }
                assert not wanted & node.asked_to_spawn, "asked to spawn a rank twice"
                assert all(isinstance(self.state.ranks[rank], Pending) for rank in action.ranks)
                node.asked_to_spawn |= wanted
                node.requests.append(action)
            case act.TellRanks():  # without a link it is lost, and told again
                assert node.name == self.state.nodes[0].name
                assert self.state.news[action.number] == action.news
            case act.OpenStore():
                assert node.name == self.state.nodes[0].name
                assert node.link == "up"
                assert action.attempt == self.state.attempt
                node.requests.append(action)
            case act.StopRanks() | act.SignalRank() | act.ClearNode():
                assert node.link == "up"
                assert action.attempt == self.state.attempt
                node.requests.append(action)

    # the agents

    def serve(self, node: FakeNode) -> None:
        """The agent takes one request."""
        request = node.requests.popleft()
        match request:
            case act.OpenStore(attempt=attempt):
                if node.store is None or node.store[0] != attempt:
                    node.store = (attempt, next(self.ports))
                node.say(ev.StoreOpened(at=self.now, attempt=attempt, node=node.name, port=node.store[1]))
            case act.SpawnRanks(attempt=attempt, ranks=ranks, generations=generations):
                assert attempt > node.cleared, "asked to spawn what was cleared away"
                if attempt > node.attempt:
                    assert not node.living, "an attempt begins while ranks of another one live"
                    assert not node.has_leftovers, "an attempt begins beside what another one left"
                    node.attempt, node.ranks, node.told_to_stop = attempt, {}, False
                for rank, generation in zip(ranks, generations, strict=True):
                    assert (attempt, rank, generation) not in node.spawned, "spawned twice"
                    assert rank not in node.living, "started beside its living process"
                    node.spawned.add((attempt, rank, generation))
                    node.has_leftovers = True
                    pid = next(self.pids)
                    node.ranks[rank] = (pid, None, generation)
                    node.say(ev.RankSpawned(at=self.now, attempt=attempt, rank=rank, pid=pid, generation=generation))
            case act.StopRanks(attempt=attempt):
                node.told_to_stop = attempt == node.attempt
            case act.SignalRank(attempt=attempt, rank=rank, signal=number):
                if attempt == node.attempt and rank in node.living:
                    node.end(rank, -number, self.now)
            case act.ClearNode(attempt=attempt):
                node.cleared, node.has_leftovers = max(node.cleared, attempt), False
                for rank in node.living:
                    node.ranks[rank] = (node.ranks[rank][0], -9, node.ranks[rank][2])
                node.store = None
                node.say(ev.NodeCleared(at=self.now, attempt=attempt, node=node.name))
            case act.CloseNode():
                assert not node.living, "closed over living ranks"
                assert not node.has_leftovers, "closed without having been cleared"
                node.cut()
                node.link = "idle"
                self.handle(ev.NodeClosed(at=self.now, node=node.name))

    def connect(self, node: FakeNode) -> None:
        node.link = "up"
        node.cut()
        self.handle(ev.NodeConnected(at=self.now, node=node.name, agent_pid=7, ranks=node.known()))

    # what may happen

    def pick(self, index: int, fits: Callable[[FakeNode], object]) -> FakeNode:
        fitting = [node for node in self.nodes.values() if fits(node)]
        return fitting[index % len(fitting)]

    def any_node(self, fits: Callable[[FakeNode], object]) -> bool:
        return any(fits(node) for node in self.nodes.values())

    def later(self, seconds: float = 3.0) -> None:
        self.now += seconds

    @rule(count=st.integers(1, 6))
    def things_go_on(self, count: int) -> None:
        for _ in range(count):
            self.advance(end_ranks=False)

    @rule()
    def all_is_quiet_for_a_while(self) -> None:
        while self.advance(end_ranks=False):
            pass

    @precondition(lambda self: self.any_node(lambda node: node.link == "opening"))
    @rule(index=st.integers(0, 5))
    def a_link_comes_up(self, index: int) -> None:
        self.later()
        self.connect(self.pick(index, lambda node: node.link == "opening"))

    @precondition(lambda self: self.any_node(lambda node: node.requests))
    @rule(index=st.integers(0, 5))
    def an_agent_takes_a_request(self, index: int) -> None:
        self.later()
        self.serve(self.pick(index, lambda node: node.requests))

    @precondition(lambda self: self.any_node(lambda node: node.answers))
    @rule(index=st.integers(0, 5))
    def an_answer_arrives(self, index: int) -> None:
        self.later()
        self.handle(self.pick(index, lambda node: node.answers).answers.popleft())

    @precondition(lambda self: self.any_node(lambda node: node.living))
    @rule(index=st.integers(0, 5), rank=st.integers(0, 5), status=st.sampled_from([0, 0, 0, 1, -9]))
    def a_rank_ends(self, index: int, rank: int, status: int) -> None:
        self.later()
        node = self.pick(index, lambda node: node.living)
        node.end(node.living[rank % len(node.living)], status, self.now)

    @precondition(lambda self: self.any_node(lambda node: node.living))
    @rule(index=st.integers(0, 5), rank=st.integers(0, 5))
    def a_rank_joins_its_generation(self, index: int, rank: int) -> None:
        self.later()
        node = self.pick(index, lambda node: node.living)
        joining = node.living[rank % len(node.living)]
        generation = max(node.ranks[joining][2], self.state.generation)
        node.say(ev.RankJoined(at=self.now, attempt=node.attempt, rank=joining, generation=generation, step=1))

    @precondition(
        lambda self: self.any_node(lambda node: node.requests and isinstance(node.requests[0], act.SpawnRanks))
    )
    @rule(index=st.integers(0, 5))
    def a_rank_can_not_be_started(self, index: int) -> None:
        self.later()
        node = self.pick(index, lambda node: node.requests and isinstance(node.requests[0], act.SpawnRanks))
        request = node.requests.popleft()
        assert isinstance(request, act.SpawnRanks)
        for rank, generation in zip(request.ranks, request.generations, strict=True):
            reason = "can't start: No such file or directory"
            node.say(
                ev.RankEnded(
                    at=self.now, attempt=request.attempt, rank=rank, status=127, reason=reason, generation=generation
                )
            )

    @precondition(lambda self: self.any_node(lambda node: node.link == "up"))
    @rule(index=st.integers(0, 5), reboots=st.sampled_from([False, False, False, True]))
    def a_link_breaks(self, index: int, reboots: bool) -> None:
        self.later()
        node = self.pick(index, lambda node: node.link == "up")
        if reboots:
            node.reboot()
        node.cut()
        if node.closing:
            node.link = "idle"
            self.handle(ev.NodeClosed(at=self.now, node=node.name))
        else:
            node.link = "down"
            self.handle(ev.NodeDisconnected(at=self.now, node=node.name, reason="link lost"))

    @precondition(lambda self: self.any_node(lambda node: node.link == "opening"))
    @rule(index=st.integers(0, 5), really=SELDOM)
    def a_node_is_given_up(self, index: int, really: bool) -> None:
        self.later()
        if really:
            node = self.pick(index, lambda node: node.link == "opening")
            node.link = "idle"
            node.reboot()
            self.handle(ev.NodeGivenUp(at=self.now, node=node.name, reason="no route"))

    @precondition(lambda self: self.any_node(lambda node: node.store is not None))
    @rule(index=st.integers(0, 5))
    def the_store_ends(self, index: int) -> None:
        self.later()
        node = self.pick(index, lambda node: node.store is not None)
        assert node.store is not None
        attempt, node.store = node.store[0], None
        node.say(ev.StoreLost(at=self.now, attempt=attempt, reason="its process ended"))

    @precondition(lambda self: not isinstance(self.state.phase, Ended))
    @rule(really=SELDOM)
    def the_supervisor_is_replaced(self, really: bool) -> None:
        self.later()
        if not really:
            return
        state = replay(self.journal)
        assert state is not None
        self.state = state
        for node in self.nodes.values():
            node.cut()
            node.link, node.closing = "idle", False
        self.handle(ev.SupervisorStarted(at=self.now, pid=9))

    @rule(at_once=st.booleans(), really=SELDOM)
    def a_user_stops_it(self, at_once: bool, really: bool) -> None:
        self.later()
        if really:
            self.handle(ev.StopRequested(at=self.now, by="alice", at_once=at_once))

    @rule(seconds=st.sampled_from([0.1, 30.0]), scope=st.sampled_from(["smallest", "all"]))
    def a_user_restarts_it(self, seconds: float, scope: ev.Scope) -> None:
        self.later(seconds)
        self.handle(ev.RestartRequested(at=self.now, by="alice", scope=scope))

    @rule(rank=st.integers(-1, 6))
    def a_user_kills_a_rank(self, rank: int) -> None:
        self.later()
        self.handle(ev.KillRequested(at=self.now, by="alice", rank=rank, signal=9))

    @rule(back=st.integers(1, 20))
    def old_news_comes_again(self, back: int) -> None:
        """Duplicates, and news of earlier attempts."""
        self.later()
        old = [event for event in self.journal if getattr(event, "attempt", None) is not None]
        if not old:
            return
        event = old[-min(back, len(old))]
        before = self.state
        self.handle(msgspec.structs.replace(event, at=self.now))
        if not isinstance(event, ev.StoreLost):
            assert self.state is before, "old news changed something"

    # what must hold

    @invariant()
    def the_journal_tells_the_state(self) -> None:
        if hasattr(self, "state"):
            assert replay(self.journal) == self.state

    @invariant()
    def words_agree(self) -> None:
        if hasattr(self, "state"):
            check_words(self.state)

    @invariant()
    def attempts_only_grow(self) -> None:
        if hasattr(self, "state"):
            assert self.attempts == list(range(len(self.attempts)))

    @invariant()
    def ranks_of_one_attempt_live(self) -> None:
        if hasattr(self, "state"):
            assert len({node.attempt for node in self.nodes.values() if node.living}) <= 1

    @invariant()
    def no_process_outlives_a_run(self) -> None:
        if hasattr(self, "state") and isinstance(self.state.phase, Ended):
            assert not any(node.living for node in self.nodes.values())

    def advance(self, *, end_ranks: bool) -> bool:
        """Lets one thing happen that has to happen sooner or later; False where nothing is left."""
        self.later(0.5)
        for node in self.nodes.values():
            if node.link == "opening":
                self.connect(node)
            elif node.answers:
                self.handle(node.answers.popleft())
            elif node.requests:
                self.serve(node)
            elif node.living and (end_ranks or node.told_to_stop):
                node.end(node.living[0], -15 if node.told_to_stop else 0, self.now)
            else:
                continue
            return True
        return False

    def come_to_rest(self, *, end_ranks: bool) -> None:
        left = 40 * (len(self.state.ranks) + len(self.nodes))
        while self.advance(end_ranks=end_ranks):
            left -= 1
            assert left, "it never comes to rest"

    def teardown(self) -> None:
        """Whatever happened so far: once everything is answered the run runs, holds or has ended, and stop ends it."""
        if not hasattr(self, "state"):
            return
        self.come_to_rest(end_ranks=False)
        assert isinstance(self.state.phase, Running | Holding | Ended)
        if self.ranks_end_by_themselves:
            self.come_to_rest(end_ranks=True)
            assert isinstance(self.state.phase, Holding | Ended)
        self.handle(ev.StopRequested(at=self.now, by="alice"))
        self.come_to_rest(end_ranks=False)
        assert isinstance(self.state.phase, Ended)
        self.no_process_outlives_a_run()
        self.words_agree()
        self.the_journal_tells_the_state()


AnyStory.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestAnyStory = AnyStory.TestCase
