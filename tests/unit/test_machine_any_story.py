"""The state machine: any story that faithful agents can tell."""

import itertools
import typing
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent
from engine.core.run.machine import launch, replay, step
from engine.core.run.state import Ended, Holding, Pending, Running
from tests.run_story import check_words


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


SELDOM = st.sampled_from([False] * 7 + [True])  # guards what would end most stories early


class AnyStory(RuleBasedStateMachine):
    """A supervisor with a journal, and faithful agents that answer whenever they like."""

    @initialize(
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        on_failure=st.sampled_from(["hold", "stop", "restart"]),
        restarts=st.integers(0, 2),
        ranks_end_by_themselves=st.booleans(),
        spares=st.integers(0, 2),
    )
    def launch_it(
        self, sizes: list[int], on_failure: str, restarts: int, ranks_end_by_themselves: bool, spares: int
    ) -> None:
        first, nodes = 0, []
        for index, size in enumerate(sizes):
            nodes.append((f"n{index}", tuple(range(first, first + size))))
            first += size
        self.now = 1000.0
        self.ranks_end_by_themselves = ranks_end_by_themselves
        self.ports = itertools.count(4000)
        self.pids = itertools.count(100)
        self.attempts = [0]
        spare_names = tuple(f"s{number}" for number in range(spares))
        self.nodes = {name: FakeNode(name) for name in (*(name for name, _ in nodes), *spare_names)}
        event = ev.RunLaunched(
            at=self.now, run="x-1", name="x", nodes=tuple(nodes), on_failure=on_failure, max_restarts=restarts,
            spare_nodes=spares, spare_names=spare_names,
        )  # fmt: skip
        self.journal: list[AnyEvent] = [event]
        self.state, actions = launch(event)
        self.told, self.replayed = self.state, 1
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
        """What was written since this was last looked at makes the same of the state that was replayed then."""
        if hasattr(self, "state"):
            for event in self.journal[self.replayed :]:
                self.told = step(self.told, event)[0]
            self.replayed = len(self.journal)
            assert self.told == self.state

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
        assert replay(self.journal) == self.state


AnyStory.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestAnyStory = pytest.mark.slow(AnyStory.TestCase)
