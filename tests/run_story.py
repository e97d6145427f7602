"""A run told event by event, as its supervisor does it, for tests of the state machine."""

from __future__ import annotations

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent
from engine.core.run.machine import launch, step


class Story:
    """A run that is told event by event, as the supervisor does it."""

    def __init__(
        self,
        nodes: tuple[tuple[str, tuple[int, ...]], ...] = (("a", (0, 1)),),
        on_failure: str = "hold",
        restarts: int = 3,
        backends: tuple[str, ...] = (),
        spare_nodes: int = 0,
        spare_names: tuple[str, ...] = (),
        restart_when: str = "may_heal",
    ) -> None:
        first = ev.RunLaunched(
            at=0.0,
            run="x-1",
            name="x",
            nodes=nodes,
            on_failure=on_failure,
            max_restarts=restarts,
            restart_when=restart_when,
            backend="".join(backends[:1]),
            fallback=tuple(ev.FallbackBackend(backend=backend) for backend in backends[1:]),
            spare_nodes=max(spare_nodes, len(spare_names)),
            spare_names=spare_names,
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
        setup_error: str = "",
        by: str = "",
        by_itself: bool = False,
        no_retry: str = "",
        place: str = "",
    ) -> Story:
        self.tell(
            ev.RankEnded(
                at=self.at(),
                attempt=self.state.attempt,
                rank=rank,
                status=status,
                step=after,
                secondary=secondary,
                setup_error=setup_error,
                by=by,
                by_itself=by_itself,
                no_retry=no_retry,
                place=place,
                generation=self.state.generation_of(rank),
            )
        )
        return self

    def lose(self, rank: int, *, after: int | None = None) -> Story:
        """Nobody saw how this rank ended."""
        attempt, generation = self.state.attempt, self.state.generation_of(rank)
        lost = ev.RankLost(
            at=self.at(), attempt=attempt, rank=rank, reason="nobody saw it", step=after, generation=generation
        )
        self.tell(lost)
        return self

    def join(self, *ranks: int, over: str = "") -> Story:
        attempt, generation = self.state.attempt, self.state.generation
        for rank in ranks or range(len(self.state.ranks)):
            at = self.at()
            self.tell(ev.RankJoined(at=at, attempt=attempt, rank=rank, generation=generation, step=7, over=over))
        return self

    def wait(self, generation: int, *ranks: int) -> Story:
        for rank in ranks:
            self.tell(ev.RankWaiting(at=self.at(), attempt=self.state.attempt, rank=rank, generation=generation))
        return self

    def overdue(self) -> Story:
        generation = self.state.generation
        self.tell(ev.RejoinOverdue(at=self.at(), attempt=self.state.attempt, generation=generation))
        return self

    def stop(self, *, at_once: bool = False, again: bool = False) -> Story:
        self.tell(ev.StopRequested(at=self.at(), by="alice", at_once=at_once, again=again))
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
        assert isinstance(self.state.phase, st.Ended)
        return self.state.phase.outcome.word, self.state.phase.outcome.reason


TWO = (("a", (0, 1)), ("b", (2,)))


def without_b(story: Story) -> Story:
    story.tell(ev.NodeDisconnected(at=story.at(), node="b", reason="link lost"))
    return story


def given_up(story: Story) -> Story:
    story.tell(ev.NodeGivenUp(at=story.at(), node="b", reason="no route"))
    return story


def rejoining(on_failure: str = "hold", restarts: int = 9, spare_names: tuple[str, ...] = ()) -> Story:
    """Four ranks that can rejoin, all of them in the first generation."""
    return Story((("a", (0, 1)), ("b", (2, 3))), on_failure, restarts, spare_names=spare_names).run().join()


def check_words(state: st.RunState) -> None:
    """What the words of a run promise of each other."""
    words = [st.rank_word(phase) for phase in state.ranks]
    word = st.run_word(state)
    assert (word in st.ENDED_WORDS | {"queued"}) == isinstance(state.phase, st.Ended)
    if word == "holding":
        assert st.root_cause(state) is not None
    if word == "succeeded":
        assert set(words) == {"exited"}
    if isinstance(state.phase, st.Starting | st.Running):
        assert st.root_cause(state) is None
        assert not {"failed", "lost", "stopped"} & set(words)
    if isinstance(state.phase, st.Running):
        assert "starting" not in words
    if isinstance(state.phase, st.Stopping):
        assert "running" in words
    if isinstance(state.phase, st.Clearing | st.Closing | st.Ended):
        assert "running" not in words
    if isinstance(state.phase, st.Ended):
        assert all(node.link in ("closed", "given-up") for node in state.nodes)


def continued(story: Story) -> Story:
    """The run on the nodes c and d of another job."""
    story.tell(
        ev.RunContinued(at=story.at(), job="7", nodes=tuple(zip("cd", [ranks for _, ranks in TWO], strict=True)))
    )
    return story
