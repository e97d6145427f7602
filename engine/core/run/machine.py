"""The run as one pure function: `step(state, event) -> (state, actions)`.

Two rules. Everything that changes a run's state is in this file. And every event is decided in every phase: each handler
matches on all of them, `assert_never` lets the type checker prove it, and "nothing to do" is an `Ignore` with its reason.

    Opening ── nodes up ──> Starting ── all spawned ──> Running ── all exited 0 ──> Clearing ──> Closing ──> Ended
                                │                          │                          ▲  │
                                └── a rank failed ─> Holding or Stopping ─────────────┘  └── restart: Starting, attempt + 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, assert_never

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent
from engine.core.run.state import (
    CRASHES,
    Alive,
    Clearing,
    Closing,
    Done,
    Ended,
    Gone,
    Holding,
    News,
    Node,
    Opening,
    Outcome,
    Pending,
    Restart,
    Running,
    RunState,
    Starting,
    Stopping,
    root_cause,
    status_words,
)

FRUITLESS_LIMIT = 2
"""Automatic restarts end after this many attempts in a row that got no further than an earlier one: a third would only
hide that the cause is not chance."""

RESTART_GUARD = 5.0
"""Seconds after the start of an attempt in which asking for another is taken for the same wish, told twice: a key that was
pressed again, a script that tries once more. A rank that fails meanwhile lifts it."""

MAKES_WAY = 75
"""Exit status of a rank that can't leave a lost generation, and whose state another rank has or its successor will find;
`rankdeck.elastic` has the same."""

UNREACHABLE_PATIENCE = 20.0
"""Seconds that a run which is ending waits for a node that is away: a link that hiccups is back by then, and a user who wants an end
gets one. What runs on the node meanwhile ends with its lease."""

Step = tuple[RunState, tuple[AnyAction, ...]]


def launch(event: ev.RunLaunched) -> Step:
    """The first state of a run."""
    nodes = tuple(Node(name=name, ranks=ranks, since=event.at) for name, ranks in event.nodes)
    state = RunState(
        run=event.run,
        name=event.name,
        on_failure=event.on_failure,
        max_restarts=event.max_restarts,
        one_fate=event.one_fate,
        backend=event.backend,
        spares=event.spares,
        launched_at=event.at,
        attempt_since=event.at,
        phase=Opening(),
        nodes=nodes,
        ranks=tuple(Pending() for _, ranks in event.nodes for _ in ranks),
    )
    return state, tuple(act.OpenNode(node=node.name) for node in nodes)


def step(state: RunState, event: AnyEvent) -> Step:
    """Takes one event in.

    Args:
        state: what was known.
        event: what happened.

    Returns:
        What is known now, and what is to be done about it. `state` itself where the event changes nothing.
    """
    attempt = getattr(event, "attempt", None)
    if attempt is not None and attempt != state.attempt:
        return _ignore(state, f"that was attempt {attempt}; this is attempt {state.attempt}")
    rank = getattr(event, "rank", None)
    if rank is not None and not 0 <= rank < len(state.ranks):
        return _ignore(state, f"there is no rank {rank}; this run has ranks 0 to {len(state.ranks) - 1}")
    if isinstance(event, ev.RankSpawned | ev.RankEnded | ev.RankLost) and event.generation != state.generation_of(
        event.rank
    ):
        return _ignore(state, f"that was an earlier process of rank {rank}")
    node = getattr(event, "node", None)
    if node is not None and state.node(node) is None:
        return _ignore(state, f"{node} is not a node of this run")
    handler: Callable[[RunState, Any], Step] = _HANDLERS[type(event)]
    return handler(state, event)


def replay(events: Iterable[AnyEvent]) -> RunState | None:
    """The state that a journal comes to; None for an empty one. Actions of the past are not repeated."""
    newest = deque(states(events), maxlen=1)
    return newest[0][2] if newest else None


def states(events: Iterable[AnyEvent]) -> Iterator[tuple[AnyEvent, RunState | None, RunState]]:
    """Each event of a journal, with the state that it came upon, None for the first, and the one that it led to."""
    before: RunState | None = None
    for event in events:
        if isinstance(event, ev.RunLaunched):
            after = launch(event)[0]
        elif before is not None:
            after = step(before, event)[0]
        else:
            continue
        yield event, before, after
        before = after


# --- helpers that build a step ---------------------------------------------------------------------------------------


def _ignore(state: RunState, reason: str) -> Step:
    return state, (act.Ignore(reason=reason),)


def _set_node(state: RunState, name: str, **changes: Any) -> RunState:
    return replace(state, nodes=tuple(replace(node, **changes) if node.name == name else node for node in state.nodes))


def _set_rank(state: RunState, rank: int, phase: Alive | Done | Gone) -> RunState:
    return replace(state, ranks=(*state.ranks[:rank], phase, *state.ranks[rank + 1 :]))


def _up(state: RunState) -> list[Node]:
    return [node for node in state.nodes if node.link == "up"]


def _any(state: RunState, kind: type[Pending | Alive]) -> bool:
    """Whether a rank is in such a phase. Ranks start and end more or less in order, so that one that has not is found at the end:
    this is asked for each of thousands."""
    return kind in map(type, reversed(state.ranks))


def _is_ending(state: RunState) -> bool:
    """Whether a rank that ends now does so because it was told to."""
    return isinstance(state.phase, Stopping | Clearing | Closing)


def _told_of(node: Node) -> str:
    return node.reason if node.reason.startswith(f"{node.name} ") else f"{node.name}: {node.reason}"


def _when_opened(state: RunState, at: float) -> Step:
    """Goes on once it is known of every node whether it is there: a user hears of all that are not, at once."""
    if any(node.link == "down" for node in state.nodes):
        return state, ()
    if missing := [_told_of(node) for node in state.nodes if node.link == "given-up"]:
        return _close(state, Outcome(word="failed", reason="; ".join(missing)), at)
    return _start_attempt(state)


def _start_attempt(state: RunState) -> Step:
    """Opens the store once every node is there; ranks follow when it listens."""
    if all(node.link == "up" for node in state.nodes):
        return replace(state, phase=Starting()), (act.OpenStore(node=state.nodes[0].name, attempt=state.attempt),)
    closed = [node.name for node in state.nodes if node.link in ("closed", "given-up")]
    for name in closed:
        state = _set_node(state, name, link="down", reason="", was_up=False)
    return replace(state, phase=Opening()), tuple(act.OpenNode(node=name) for name in closed)


def _next_attempt(state: RunState, at: float) -> Step:
    fresh = replace(
        state,
        attempt=state.attempt + 1,
        attempt_since=at,
        ranks=tuple(Pending() for _ in state.ranks),
        nodes=tuple(replace(node, cleared=False, abandoned=()) for node in state.nodes),
        store_port=None,
        store_address="",
        interfaces=(),
        store_trouble="",
        ends=0,
        generation=0,
        started_for=(),
        joined=frozenset(),
        elastic=False,
        news=(),
    )
    return _start_attempt(fresh)


def _fall_back(state: RunState) -> RunState:
    """The next backend's turn."""
    first, *others = state.spares
    return replace(state, backend=first.backend, one_fate=first.one_fate, spares=tuple(others))


def _spawn(state: RunState, node: Node, among: Iterable[int] | None = None) -> tuple[AnyAction, ...]:
    """Asks a node for its ranks that have no process; of those in `among`, where others were asked for already."""
    waiting = tuple(
        rank for rank in node.ranks if isinstance(state.ranks[rank], Pending) and (among is None or rank in among)
    )
    if not waiting or state.store_port is None:
        return ()
    generations = tuple(state.generation_of(rank) for rank in waiting)
    return (
        act.SpawnRanks(
            node=node.name,
            attempt=state.attempt,
            ranks=waiting,
            address=state.store_address,
            port=state.store_port,
            generations=generations,
        ),
    )


def _reach_soon(state: RunState) -> tuple[AnyAction, ...]:
    """Nodes that are away are not waited for as long as while they train."""
    away = [node.name for node in state.nodes if node.link == "down"]
    return tuple(act.OpenNode(node=name, patience=UNREACHABLE_PATIENCE) for name in away)


def _stop(state: RunState, then: Outcome | Restart, at: float, *, at_once: bool = False) -> Step:
    """Stops what runs, and goes straight on where nothing does: clearing a node ends what may be starting there."""
    if not _any(state, Alive):
        return _clear(state, then, at)
    stops = tuple(act.StopRanks(node=node.name, attempt=state.attempt, at_once=at_once) for node in _up(state))
    return replace(state, phase=Stopping(then=then, at_once=at_once)), stops + _reach_soon(state)


def _clear(state: RunState, then: Outcome | Restart, at: float) -> Step:
    clears = tuple(act.ClearNode(node=node.name, attempt=state.attempt) for node in _up(state)) + _reach_soon(state)
    return _when_cleared(replace(state, phase=Clearing(then=then)), clears, at)


def _when_cleared(state: RunState, actions: tuple[AnyAction, ...], at: float) -> Step:
    assert isinstance(state.phase, Clearing)
    if not all(node.cleared or node.link == "given-up" for node in state.nodes):
        return state, actions
    match state.phase.then:
        case Restart(falls_back=falls_back):
            state, more = _next_attempt(_fall_back(state) if falls_back else state, at)
        case Outcome() as outcome:
            state, more = _close(state, outcome, at)
    return state, actions + more


def _with_reason(outcome: Outcome, more: str) -> Outcome:
    return replace(outcome, reason=f"{outcome.reason}; {more}" if outcome.reason else more)


def _close(state: RunState, outcome: Outcome, at: float) -> Step:
    """Ends the agents. One that is being opened is closed as well: whoever opens it knows how to give up."""
    if abandoned := [f"{pid} on {node.name}" for node in state.nodes for pid in node.abandoned]:
        outcome = _with_reason(outcome, f"could not kill process {', '.join(abandoned)}")
    closes: tuple[AnyAction, ...] = tuple(
        act.CloseNode(node=node.name) for node in state.nodes if node.link in ("up", "down")
    )
    closes += _reach_soon(state)
    return _when_closed(replace(state, phase=Closing(outcome=outcome)), closes, at)


def _when_closed(state: RunState, actions: tuple[AnyAction, ...], at: float) -> Step:
    assert isinstance(state.phase, Closing)
    if all(node.link in ("closed", "given-up") for node in state.nodes):
        outcome = state.phase.outcome
        if away := [node.name for node in state.nodes if node.link == "given-up" and node.was_up]:
            left = "its" if len(away) == 1 else "their"
            outcome = _with_reason(
                outcome, f"{', '.join(away)} could not be reached: what runs there ends with {left} lease"
            )
        state = replace(state, phase=Ended(outcome=outcome, at=at))
    return state, actions


def _on_failure(state: RunState, at: float) -> Step:
    """A rank has just failed or was lost: does what the profile says."""
    cause = root_cause(state)
    assert cause is not None
    rank, phase = cause
    if isinstance(phase, Done) and _may_fall_back(state):
        why = f"{state.backend} failed on {state.home(rank).name}, rank {rank}: {phase.forming}"
        return _stop(state, Restart(reason=f"{why}; running on {state.spares[0].backend}", falls_back=True), at)
    reason = f"rank {rank}: {status_words(phase.status) if isinstance(phase, Done) else 'lost'}"
    state, told = _tell(state, ("lost", state.generation)) if state.elastic and not state.one_fate else (state, ())
    if isinstance(phase, Done) and phase.status == MAKES_WAY and not why_no_rejoin(state):
        state, actions = _rejoin(
            state, at
        )  # nobody need decide that: a restart is under way, and this rank was in its way
        return state, told + actions
    state, actions = _follow_policy(state, phase.step if isinstance(phase, Done) else None, rank, reason, at)
    return state, told + actions


def _may_fall_back(state: RunState) -> bool:
    """Whether the root cause is a process group that could not be set up, and there is another backend for it. A rank that somebody
    has killed, or that only lost the others, tells nothing of its backend."""
    cause = root_cause(state)
    if cause is None or not state.spares or state.joined or state.generation:
        return False
    _, phase = cause
    if not isinstance(phase, Done) or not phase.forming or phase.secondary:
        return False
    return phase.status > 0 or -phase.status in CRASHES


def _follow_policy(state: RunState, reached: int | None, rank: int, reason: str, at: float) -> Step:
    match state.on_failure:
        case "hold":
            return replace(state, phase=Holding()), ()
        case "restart":
            return _restart_or_fail(state, reached, rank, reason, at)
        case _:
            return _stop(state, Outcome(word="failed", reason=reason), at)


def why_no_rejoin(state: RunState) -> str:
    """Why the dead ranks alone can't be started again, or nothing where they can."""
    dead = [rank for rank, phase in enumerate(state.ranks) if isinstance(phase, Done | Gone)]
    finished = [rank for rank in dead if isinstance(phase := state.ranks[rank], Done) and phase.status == 0]
    unreachable = {
        rank: node.name for node in state.nodes if node.link in ("closed", "given-up") for rank in node.ranks
    }
    away = [unreachable[rank] for rank in dead if rank in unreachable]
    if not dead:
        return "no rank has failed"
    if state.one_fate:
        return state.one_fate
    if not state.elastic:
        return "the script does not use rankdeck.elastic, or had not got there"
    if len(dead) == len(state.ranks):
        return "no rank is left that has the state"
    if finished:
        return f"rank {finished[0]} has finished already"
    if state.store_trouble or state.store_port is None:
        return "the store is lost"
    if away:
        return f"{away[0]} was given up"
    return ""


def _tell(state: RunState, news: News) -> Step:
    """Tells the ranks something, once."""
    if news in state.news:
        return state, ()
    number = len(state.news)
    action = act.TellRanks(node=state.nodes[0].name, attempt=state.attempt, number=number, news=news)
    return replace(state, news=(*state.news, news)), (action,)


def _rejoin(state: RunState, at: float) -> Step:
    """Starts the dead ranks for a new generation, which the others are told to wait for."""
    generation = state.generation + 1
    dead = {rank for rank, phase in enumerate(state.ranks) if isinstance(phase, Done | Gone)}
    count = range(len(state.ranks))
    state = replace(
        state,
        phase=Starting(),
        generation=generation,
        generation_since=at,
        started_for=tuple(generation if rank in dead else state.generation_of(rank) for rank in count),
        ranks=tuple(Pending() if rank in dead else state.ranks[rank] for rank in count),
        joined=frozenset(),
    )
    state, told = _tell(state, ("generation", generation))
    return state, told + tuple(action for node in _up(state) for action in _spawn(state, node, dead))


def _restart_or_fail(state: RunState, reached: int | None, rank: int, reason: str, at: float) -> Step:
    forming = 0 < len(state.joined) < len(state.ranks) or (state.generation > 0 and not state.joined)
    if forming and state.generation_of(rank) < state.generation and not why_no_rejoin(state):
        return _rejoin(state, at)  # one of several that died together: the restart that is under way takes it along
    if state.restarts >= state.max_restarts:
        return _stop(state, Outcome(word="failed", reason=f"{reason}, after {state.restarts} restarts"), at)
    fruitless = state.fruitless
    if reached is not None or state.best_step is not None:
        fruitless = 0 if (reached or 0) > (state.best_step or 0) else fruitless + 1
    best = max((step for step in (reached, state.best_step) if step is not None), default=None)
    state = replace(state, best_step=best, fruitless=fruitless)
    if fruitless >= FRUITLESS_LIMIT:
        return _stop(
            state,
            Outcome(word="failed", reason=f"{reason}; {fruitless} attempts in a row got no further than step {best}"),
            at,
        )
    state = replace(state, restarts=state.restarts + 1)
    if not why_no_rejoin(state):
        return _rejoin(state, at)
    return _stop(state, Restart(reason=f"{reason}; restart {state.restarts} of {state.max_restarts}"), at)


# --- one handler for each event ----------------------------------------------------------------------------------------


def _run_launched(state: RunState, event: ev.RunLaunched) -> Step:
    return _ignore(state, "the run is launched already")


def _supervisor_started(state: RunState, event: ev.SupervisorStarted) -> Step:
    match state.phase:
        case Ended():
            return _ignore(state, "the run has ended")
        case Opening() | Starting() | Running() | Holding() | Stopping() | Clearing() | Closing():
            wanted = [node.name for node in state.nodes if node.link in ("up", "down")]
            for name in wanted:
                state = _set_node(state, name, link="down", reason="a new supervisor is connecting", since=event.at)
            patience = UNREACHABLE_PATIENCE if _is_ending(state) else None
            return state, tuple(act.OpenNode(node=name, patience=patience) for name in wanted)
        case _ as never:
            assert_never(never)


def _node_connected(state: RunState, event: ev.NodeConnected) -> Step:
    match state.phase:
        case Ended():
            return state, (act.CloseNode(node=event.node),)
        case Closing():
            state = _set_node(state, event.node, link="up", reason="", was_up=True)
            return state, (act.CloseNode(node=event.node),)
        case Opening() | Starting() | Running() | Holding() | Stopping() | Clearing():
            state = _set_node(state, event.node, link="up", reason="", since=event.at, was_up=True)
        case _ as never:
            assert_never(never)
    leftovers = _clear_older(state, event)
    state, actions = _reconcile(state, event)
    asked = {
        rank
        for action in actions
        if isinstance(action, act.SpawnRanks) and action.node == event.node and action.attempt == state.attempt
        for rank in action.ranks
    }
    state, more = _resume(state, event, asked)
    return state, leftovers + actions + more


def _clear_older(state: RunState, event: ev.NodeConnected) -> tuple[AnyAction, ...]:
    """Ends what an earlier attempt left on a node that was given up and is there again."""
    alive = [rank.attempt for rank in event.ranks if rank.attempt < state.attempt and rank.status is None]
    return (act.ClearNode(node=event.node, attempt=max(alive)),) if alive else ()


def _reconcile(state: RunState, event: ev.NodeConnected) -> Step:
    """Takes over what the agent knows of this attempt: ranks that started, ended or vanished while nobody listened."""
    actions: tuple[AnyAction, ...] = ()
    node = state.node(event.node)
    assert node is not None
    attempt = state.attempt
    known = {
        rank.rank: rank
        for rank in event.ranks
        if rank.attempt == attempt and rank.rank in node.ranks and rank.generation == state.generation_of(rank.rank)
    }
    for rank in node.ranks:
        generation = state.generation_of(rank)
        phase, said = state.ranks[rank], known.get(rank)
        news: list[AnyEvent] = []
        if isinstance(phase, Pending) and said is not None:
            news.append(ev.RankSpawned(at=event.at, attempt=attempt, rank=rank, pid=said.pid, generation=generation))
        if isinstance(phase, Pending | Alive) and said is not None and said.status is not None:
            news.append(
                ev.RankEnded(at=event.at, attempt=attempt, rank=rank, status=said.status, generation=generation)
            )
        if isinstance(phase, Alive) and said is None:
            news.append(
                ev.RankLost(
                    at=event.at,
                    attempt=attempt,
                    rank=rank,
                    reason=f"the agent on {node.name} does not know it",
                    generation=generation,
                )
            )
        for item in news:
            state, more = step(state, item)
            actions += more
    return state, actions


def _resume(state: RunState, event: ev.NodeConnected, asked: set[int]) -> Step:
    """Asks a node that has just come (back) for what its phase still needs of it, besides ranks that it was asked for already."""
    name = event.node
    node = state.node(name)
    assert node is not None
    match state.phase:
        case Opening():
            return _when_opened(state, event.at)
        case Starting():
            if state.store_port is None:
                is_complete = len(_up(state)) == len(state.nodes)
                head = state.nodes[0].name
                return state, (act.OpenStore(node=head, attempt=state.attempt),) if is_complete else ()
            return state, _tell_again(state, node) + _spawn(state, node, set(node.ranks) - asked)
        case Running() | Holding():
            return state, _tell_again(state, node) + _spawn(state, node, set(node.ranks) - asked)
        case Stopping(at_once=at_once):
            return state, (act.StopRanks(node=name, attempt=state.attempt, at_once=at_once),)
        case Clearing():
            return state, () if node.cleared else (act.ClearNode(node=name, attempt=state.attempt),)
        case Closing() | Ended():
            return state, (act.CloseNode(node=name),)
        case _ as never:
            assert_never(never)


def _tell_again(state: RunState, node: Node) -> tuple[AnyAction, ...]:
    """All news of this attempt, for the node that hosts the store: some may not have arrived."""
    if node.name != state.nodes[0].name:
        return ()
    return tuple(
        act.TellRanks(node=node.name, attempt=state.attempt, number=number, news=news)
        for number, news in enumerate(state.news)
    )


def _node_disconnected(state: RunState, event: ev.NodeDisconnected) -> Step:
    match state.phase:
        case Ended():
            return _ignore(state, "the run has ended")
        case Opening() | Starting() | Running() | Holding() | Stopping() | Clearing() | Closing():
            node = state.node(event.node)
            assert node is not None
            if node.link in ("closed", "given-up"):
                return _ignore(state, f"{event.node} is {node.link}")
            state = _set_node(state, event.node, link="down", reason=event.reason, since=event.at)
            patience = UNREACHABLE_PATIENCE if _is_ending(state) or isinstance(state.phase, Opening) else None
            return state, (act.OpenNode(node=event.node, patience=patience),)
        case _ as never:
            assert_never(never)


def _node_warned(state: RunState, event: ev.NodeWarned) -> Step:
    """It is remembered and told; nothing else follows."""
    node = state.node(event.node)
    if node is None:
        return _ignore(state, f"{event.node} is no node of this run")
    if isinstance(state.phase, Ended):
        return _ignore(state, "the run has ended")
    text = f"{event.check}: {event.text}"
    if text in node.warnings:
        return _ignore(state, "that is known")
    return _set_node(state, event.node, warnings=(*node.warnings, text)), ()


def _node_given_up(state: RunState, event: ev.NodeGivenUp) -> Step:
    before, state = state, _set_node(state, event.node, link="given-up", reason=event.reason, since=event.at)
    match state.phase:
        case Ended():
            return _ignore(before, "the run has ended")
        case Opening():
            return _when_opened(state, event.at)
        case Starting() | Running() | Holding() | Stopping():
            node = state.node(event.node)
            assert node is not None
            actions: tuple[AnyAction, ...] = ()
            attempt = state.attempt  # the last rank of it may begin the next one
            for rank in node.ranks:
                generation = state.generation_of(rank)
                lost = ev.RankLost(at=event.at, attempt=attempt, rank=rank, reason=event.reason, generation=generation)
                state, more = step(state, lost)
                actions += more
            return state, actions
        case Clearing():
            return _when_cleared(state, (), event.at)
        case Closing():
            return _when_closed(state, (), event.at)
        case _ as never:
            assert_never(never)


def _node_cleared(state: RunState, event: ev.NodeCleared) -> Step:
    match state.phase:
        case Clearing():
            if any(node.name == event.node and node.cleared for node in state.nodes):
                return _ignore(state, f"{event.node} is cleared already")
            return _when_cleared(_set_node(state, event.node, cleared=True, abandoned=event.abandoned), (), event.at)
        case Opening() | Starting() | Running() | Holding() | Stopping() | Closing() | Ended():
            return _ignore(state, "nobody asked for that node to be cleared")
        case _ as never:
            assert_never(never)


def _node_closed(state: RunState, event: ev.NodeClosed) -> Step:
    match state.phase:
        case Closing():
            return _when_closed(_set_node(state, event.node, link="closed", since=event.at), (), event.at)
        case Opening() | Starting() | Running() | Holding() | Stopping() | Clearing():
            return _node_disconnected(
                state, ev.NodeDisconnected(at=event.at, node=event.node, reason="its agent ended")
            )
        case Ended():
            return _ignore(state, "the run has ended")
        case _ as never:
            assert_never(never)


def _store_opened(state: RunState, event: ev.StoreOpened) -> Step:
    match state.phase:
        case Starting():
            if state.store_port is not None:
                return _ignore(state, "the store is open already")
            state = replace(state, store_port=event.port, store_address=event.address, interfaces=event.interfaces)
            return state, tuple(action for node in _up(state) for action in _spawn(state, node))
        case Opening() | Running() | Holding() | Stopping() | Clearing() | Closing() | Ended():
            return _ignore(state, "nobody waits for a store")
        case _ as never:
            assert_never(never)


def _store_lost(state: RunState, event: ev.StoreLost) -> Step:
    match state.phase:
        case Starting() if state.store_port is None:
            return _stop(state, Outcome(word="failed", reason=f"the store could not start: {event.reason}"), event.at)
        case Starting() | Running() | Holding():
            return replace(state, store_trouble=event.reason), ()
        case Opening() | Stopping() | Clearing() | Closing() | Ended():
            return _ignore(state, "nobody needs the store")
        case _ as never:
            assert_never(never)


def _rank_spawned(state: RunState, event: ev.RankSpawned) -> Step:
    match state.phase:
        case Starting() | Running() | Holding() | Stopping():
            if not isinstance(state.ranks[event.rank], Pending):
                return _ignore(state, f"rank {event.rank} has started already")
            state = _set_rank(state, event.rank, Alive(pid=event.pid, since=event.at))
            if isinstance(state.phase, Starting) and not _any(state, Pending):
                state = replace(state, phase=Running())
            return state, ()
        case Opening() | Clearing() | Closing() | Ended():
            return _ignore(state, "no rank was to be started")
        case _ as never:
            assert_never(never)


def _rank_joined(state: RunState, event: ev.RankJoined) -> Step:
    match state.phase:
        case Starting() | Running() | Holding():
            joined = state.joined | {event.rank} if event.generation == state.generation else state.joined
            if state.elastic and joined == state.joined:
                return _ignore(state, f"rank {event.rank} was known to be in generation {event.generation}")
            return replace(state, elastic=True, joined=joined), ()
        case Opening() | Stopping() | Clearing() | Closing() | Ended():
            return _ignore(state, "the attempt is over")
        case _ as never:
            assert_never(never)


def _rank_ended(state: RunState, event: ev.RankEnded) -> Step:
    phase = state.ranks[event.rank]
    if isinstance(phase, Done | Gone):
        return _ignore(state, f"rank {event.rank} has ended already")
    done = Done(
        pid=phase.pid if isinstance(phase, Alive) else None,
        status=event.status,
        at=event.at,
        order=state.ends,
        asked=_is_ending(state),
        step=event.step,
        reason=event.reason,
        secondary=event.secondary,
        by=event.by,
        forming=event.forming,
    )
    return _take_end(
        replace(_set_rank(state, event.rank, done), ends=state.ends + 1), event.at, failed=event.status != 0
    )


def _rank_lost(state: RunState, event: ev.RankLost) -> Step:
    phase = state.ranks[event.rank]
    if isinstance(phase, Done | Gone):
        return _ignore(state, f"rank {event.rank} has ended already")
    gone = Gone(
        pid=phase.pid if isinstance(phase, Alive) else None,
        reason=event.reason,
        at=event.at,
        order=state.ends,
        asked=_is_ending(state) and not event.alive,
    )
    return _take_end(replace(_set_rank(state, event.rank, gone), ends=state.ends + 1), event.at, failed=True)


def _take_end(state: RunState, at: float, *, failed: bool) -> Step:
    """What the end of a rank means, once the rank itself is noted."""
    match state.phase:
        case Starting() | Running():
            if failed:
                return _on_failure(state, at)
            if _any(state, Pending):
                return state, ()
            if _any(state, Alive):
                return replace(state, phase=Running()), ()
            return _clear(state, Outcome(word="succeeded", reason=""), at)
        case Stopping(then=then):
            return (state, ()) if _any(state, Alive) else _clear(state, then, at)
        case Holding() if failed and _may_fall_back(state):
            return _on_failure(state, at)  # those that failed before it have only lost their connection
        case Opening() | Holding() | Clearing() | Closing() | Ended():
            return state, ()
        case _ as never:
            assert_never(never)


def _stop_requested(state: RunState, event: ev.StopRequested) -> Step:
    outcome = Outcome(word="stopped", reason=f"stopped by {event.by}")
    match state.phase:
        case Opening():
            return _close(state, outcome, event.at)
        case Starting() | Running() | Holding():
            return _stop(state, outcome, event.at, at_once=event.at_once)
        case Stopping(then=then, at_once=at_once):
            if isinstance(then, Outcome) and not event.at_once:
                return _ignore(state, "the run is stopping already")
            then = outcome if isinstance(then, Restart) else then
            return _stop(state, then, event.at, at_once=at_once or event.at_once)
        case Clearing(then=Restart()):
            return replace(state, phase=Clearing(then=outcome)), ()
        case Clearing() if event.at_once:
            waiting = [node.name for node in _up(state) if not node.cleared]
            return state, tuple(act.ClearNode(node=name, attempt=state.attempt, at_once=True) for name in waiting)
        case Clearing() | Closing():
            return _ignore(state, "the run is ending already")
        case Ended(outcome=ended):
            return _ignore(state, f"the run has ended already: {ended.word}")
        case _ as never:
            assert_never(never)


def _restart_requested(state: RunState, event: ev.RestartRequested) -> Step:
    then = Restart(reason=f"restarted by {event.by}")
    match state.phase:
        case Starting() if state.generation > 0 and event.scope == "all":
            return _stop(replace(state, restarts=0), then, event.at)
        case Opening() | Starting():
            return _ignore(state, f"attempt {state.attempt} is starting already")
        case Running() if state.attempt > 0 and 0 <= event.at - state.attempt_since < RESTART_GUARD:
            return _ignore(state, f"attempt {state.attempt} has only just started")
        case Running() if state.generation > 0 and 0 <= event.at - state.generation_since < RESTART_GUARD:
            return _ignore(state, f"generation {state.generation} has only just begun")
        case Holding() if event.scope != "all" and not why_no_rejoin(state):
            return _rejoin(replace(state, restarts=0), event.at)
        case Running() | Holding():
            return _stop(replace(state, restarts=0), then, event.at)
        case Stopping(then=Restart()) | Clearing(then=Restart()):
            return _ignore(state, f"attempt {state.attempt + 1} is coming already")
        case Stopping(then=Outcome(word="failed")):
            return replace(state, phase=replace(state.phase, then=then)), ()
        case Clearing(then=Outcome(word="failed")):
            return replace(state, phase=Clearing(then=then)), ()
        case Stopping() | Clearing() | Closing():
            return _ignore(state, "the run is ending; restart it once it has ended")
        case Ended():
            return _next_attempt(replace(state, phase=Opening(), restarts=0), event.at)
        case _ as never:
            assert_never(never)


def _kill_requested(state: RunState, event: ev.KillRequested) -> Step:
    match state.ranks[event.rank]:
        case Alive():
            node = state.home(event.rank)
            if node.link != "up":
                return _ignore(state, f"{node.name} is not reachable: {node.reason}")
            return state, (act.SignalRank(node=node.name, attempt=state.attempt, rank=event.rank, signal=event.signal),)
        case Pending():
            return _ignore(state, f"rank {event.rank} has not started")
        case Done() | Gone():
            return _ignore(state, f"rank {event.rank} has ended already")
        case _ as never:
            assert_never(never)


_HANDLERS: dict[type[ev.Event], Callable[[RunState, Any], Step]] = {
    ev.RunLaunched: _run_launched,
    ev.SupervisorStarted: _supervisor_started,
    ev.NodeConnected: _node_connected,
    ev.NodeDisconnected: _node_disconnected,
    ev.NodeGivenUp: _node_given_up,
    ev.NodeWarned: _node_warned,
    ev.NodeCleared: _node_cleared,
    ev.NodeClosed: _node_closed,
    ev.StoreOpened: _store_opened,
    ev.StoreLost: _store_lost,
    ev.RankSpawned: _rank_spawned,
    ev.RankJoined: _rank_joined,
    ev.RankEnded: _rank_ended,
    ev.RankLost: _rank_lost,
    ev.StopRequested: _stop_requested,
    ev.RestartRequested: _restart_requested,
    ev.KillRequested: _kill_requested,
}
