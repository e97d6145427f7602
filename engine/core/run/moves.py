"""Changes of a run's state that several events lead to: start an attempt, stop it, clear it away, close the nodes. Each takes the state
and returns a `Step`: the new state, and what the supervisor has to do."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict, fields, replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.actions import AnyAction
from engine.core.run.events import AnyEvent

UNREACHABLE_PATIENCE = 20.0
"""Seconds that an ending run waits for an unreachable node: enough for a short network failure. Processes on the node end with
their lease."""

Step = tuple[st.RunState, tuple[AnyAction, ...]]


def ignore(state: st.RunState, reason: str) -> Step:
    """Changes nothing. `reason` is the answer to the sender of the event."""
    return state, (act.Ignore(reason=reason),)


def outdated(state: st.RunState, event: AnyEvent) -> str:
    """Why an event is not about the current state (another attempt, an earlier process, an unknown rank or node); empty: it counts."""
    if isinstance(event, ev.RestartRequested):
        if event.attempt is not None and event.attempt != state.attempt:
            return f"you saw attempt {event.attempt}; attempt {state.attempt} has started since"
        if event.generation is not None and event.generation != state.generation:
            return f"you saw generation {event.generation}; generation {state.generation} has begun since"
        return ""
    if isinstance(event, ev.AttemptEvent) and event.attempt != state.attempt:
        return f"that was attempt {event.attempt}; this is attempt {state.attempt}"
    if isinstance(event, ev.RankEvent | ev.KillRequested) and not 0 <= event.rank < len(state.ranks):
        return f"there is no rank {event.rank}; this run has ranks 0 to {len(state.ranks) - 1}"
    if isinstance(event, ev.ProcessEvent) and event.generation != state.generation_of(event.rank):
        return f"that was an earlier process of rank {event.rank}"
    if isinstance(event, ev.NodeEvent | ev.NodeCleared | ev.StoreOpened) and all(
        one.name != event.node for one in state.nodes
    ):
        return f"{event.node} is not a node of this run"
    return ""


def set_node(state: st.RunState, name: str, **changes: Any) -> st.RunState:
    """The state with other fields of one node."""
    return replace(state, nodes=tuple(replace(node, **changes) if node.name == name else node for node in state.nodes))


def set_rank(state: st.RunState, rank: int, phase: st.Alive | st.Done | st.Gone) -> st.RunState:
    """The state with another phase of one rank."""
    return replace(state, ranks=(*state.ranks[:rank], phase, *state.ranks[rank + 1 :]))


def up_nodes(state: st.RunState) -> list[st.Node]:
    return [node for node in state.nodes if node.link == "up"]


def any_rank(state: st.RunState, kind: type[st.Pending | st.Alive]) -> bool:
    """Whether any rank is in this phase. Called for each of thousands of ranks. Ranks start and end roughly in order, so the search
    begins at the last one."""
    return kind in map(type, reversed(state.ranks))


def is_ending(state: st.RunState) -> bool:
    """Whether the run itself ends its ranks now."""
    return isinstance(state.phase, st.Stopping | st.Clearing | st.Closing)


def when_opened(state: st.RunState, at: float) -> Step:
    """Starts the attempt, or fails, once every node is up or given up: the user reads about all missing nodes at once."""
    if any(node.link == "down" for node in state.nodes):
        return state, ()
    if missing := [node for node in state.nodes if node.link == "given-up"]:
        named = (
            one.reason if one.reason.startswith(f"{one.name} ") else f"{one.name}: {one.reason}" for one in missing
        )
        return close(state, st.Outcome(word="failed", reason="; ".join(named)), at)
    return start_attempt(state)


def start_attempt(state: st.RunState) -> Step:
    """Opens the store if every node is up; `StoreOpened` then starts the ranks. Else it opens the missing nodes first."""
    if all(node.link == "up" for node in state.nodes):
        return replace(state, phase=st.Starting()), (act.OpenStore(node=state.nodes[0].name, attempt=state.attempt),)
    closed = [node.name for node in state.nodes if node.link in ("closed", "given-up")]
    for name in closed:
        state = set_node(state, name, link="down", reason="", was_up=False)
    return replace(state, phase=st.Opening()), tuple(act.OpenNode(node=name) for name in closed)


OF_ATTEMPT = (
    "store_port store_address interfaces store_trouble ends generation started_for joined without_state waits_in "
    "free_rejoins elastic over told_at late saved news"
).split()
"""Fields of a run that have their default again when an attempt begins."""


def next_attempt(state: st.RunState, at: float) -> Step:
    """Starts the next attempt of all ranks, with a new store."""
    fresh = replace(
        state,
        attempt=state.attempt + 1,
        attempt_since=at,
        ranks=tuple(st.Pending() for _ in state.ranks),
        nodes=tuple(replace(node, cleared=False, abandoned=()) for node in state.nodes),
        **{one.name: one.default for one in fields(st.RunState) if one.name in OF_ATTEMPT},
    )
    return start_attempt(fresh)


def spawn(state: st.RunState, node: st.Node, among: Iterable[int] | None = None) -> tuple[AnyAction, ...]:
    """Starts the pending ranks of a node. `among`: only these ranks; None: all pending ones."""
    waiting = tuple(
        rank for rank in node.ranks if isinstance(state.ranks[rank], st.Pending) and (among is None or rank in among)
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


def reach_soon(state: st.RunState) -> tuple[AnyAction, ...]:
    """Limits the wait for nodes that are down: the run is ending."""
    away = [node.name for node in state.nodes if node.link == "down"]
    return tuple(act.OpenNode(node=name, patience=UNREACHABLE_PATIENCE) for name in away)


def stop(
    state: st.RunState, then: st.Outcome | st.Restart, at: float, *, at_once: bool = False, cause: str = ""
) -> Step:
    """Stops all ranks. If no rank is alive, it clears the nodes at once; that also ends processes that are just starting. `at_once`: send
    SIGKILL at once instead of walking the stop ladder. `cause`: see `Stopping`."""
    if not any_rank(state, st.Alive):
        return clear(state, then, at)
    stops = tuple(act.StopRanks(node=node.name, attempt=state.attempt, at_once=at_once) for node in up_nodes(state))
    state = replace(state, told_at=state.told_at or at)
    return replace(state, phase=st.Stopping(then=then, at_once=at_once, cause=cause)), stops + reach_soon(state)


def clear(state: st.RunState, then: st.Outcome | st.Restart, at: float) -> Step:
    """Ends processes that the ranks of the attempt left on the nodes; `then` follows."""
    clears = tuple(act.ClearNode(node=node.name, attempt=state.attempt) for node in up_nodes(state)) + reach_soon(state)
    return when_cleared(replace(state, phase=st.Clearing(then=then)), clears, at)


def when_cleared(state: st.RunState, actions: tuple[AnyAction, ...], at: float) -> Step:
    """Goes on to the next attempt or to the end of the run, once all nodes are cleared. `actions` come first."""
    assert isinstance(state.phase, st.Clearing)
    if not all(node.cleared or node.link == "given-up" for node in state.nodes):
        return state, actions
    match state.phase.then:
        case st.Restart(falls_back=falls_back):
            if falls_back:
                first, *others = state.fallback
                state = replace(state, fallback=tuple(others), **asdict(first))
            state, more = next_attempt(state, at)
        case st.Outcome() as outcome:
            state, more = close(state, outcome, at)
    return state, actions + more


def _with_reason(outcome: st.Outcome, more: str) -> st.Outcome:
    return replace(outcome, reason=f"{outcome.reason}; {more}" if outcome.reason else more)


def close(state: st.RunState, outcome: st.Outcome, at: float) -> Step:
    """Ends the agents, including those of nodes that are still being opened."""
    if abandoned := [f"{pid} on {node.name}" for node in state.nodes for pid in node.abandoned]:
        outcome = _with_reason(outcome, f"could not kill process {', '.join(abandoned)}")
    closes: tuple[AnyAction, ...] = tuple(
        act.CloseNode(node=node.name) for node in state.nodes if node.link in ("up", "down")
    )
    closes += reach_soon(state)
    return when_closed(replace(state, phase=st.Closing(outcome=outcome)), closes, at)


def when_closed(state: st.RunState, actions: tuple[AnyAction, ...], at: float) -> Step:
    """Ends the run once all nodes are closed. `actions` come first."""
    assert isinstance(state.phase, st.Closing)
    if not state.phase.outcome.job_ended and all(node.link in ("closed", "given-up") for node in state.nodes):
        outcome = state.phase.outcome
        if away := [node.name for node in state.nodes if node.link == "given-up" and node.was_up]:
            left = "its" if len(away) == 1 else "their"
            outcome = _with_reason(
                outcome, f"{', '.join(away)} could not be reached: processes there end with {left} lease"
            )
        state = replace(state, phase=st.Ended(outcome=outcome, at=at))
    return state, actions
