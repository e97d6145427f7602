"""Rejoin: starts only the dead ranks, in a new generation of the attempt, and informs the others through the store. If the ranks do not
all join that generation within a limit, all start again as the next attempt."""

from collections.abc import Iterable

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import state as st
from engine.core.run.actions import AnyAction
from engine.core.run.moves import Step, spawn, up_nodes

EXIT_TO_BE_REPLACED = 75
"""Exit status of a rank that can't leave a lost generation and asks for a new process. `rankdeck.elastic` uses the same number. A
script may use it too, so the status alone is not enough: see `failure_policy`."""

APART_LIMIT = 20.0
"""Seconds that a rank may wait in an older generation than the newest. It receives that news within milliseconds, and a rank that can't
leave the old generation is replaced within seconds."""

MEETING_LIMIT = 600.0
"""Seconds that ranks may take for a generation that all of them have reached: to connect, and to copy the state. Most problems
there end a rank much earlier."""


def dead_ranks(state: st.RunState) -> list[int]:
    return [rank for rank, phase in enumerate(state.ranks) if isinstance(phase, st.Done | st.Gone)]


def why_no_rejoin(state: st.RunState) -> str:
    """Why the dead ranks can't rejoin alone; empty if they can."""
    dead = dead_ranks(state)
    finished = [rank for rank in dead if isinstance(phase := state.ranks[rank], st.Done) and phase.status == 0]
    unreachable = {
        rank: node.name for node in state.nodes if node.link in ("closed", "given-up") for rank in node.ranks
    }
    away = [unreachable[rank] for rank in dead if rank in unreachable]
    if not dead:
        return "no rank has failed"
    if state.start_together:
        return state.start_together
    if not state.elastic:
        return "the script does not use rankdeck.elastic, or had not reached it"
    if len(dead) == len(state.ranks) or len(_without_state(state, dead)) == len(state.ranks):
        return "no rank that has the state is left"
    if finished:
        return f"rank {finished[0]} has finished already"
    if state.store_trouble or state.store_port is None:
        return "the store is lost"
    if away:
        return f"{away[0]} was given up"
    return ""


def _without_state(state: st.RunState, dead: Iterable[int]) -> frozenset[int]:
    """The ranks without the state, if the dead ones start again. One that asked for a new process has left its state to that."""
    return state.without_state | {
        rank
        for rank in dead
        if not (isinstance(phase := state.ranks[rank], st.Done) and phase.status == EXIT_TO_BE_REPLACED)
    }


def is_forming(state: st.RunState) -> bool:
    """Whether a rejoin is under way: not all ranks have joined the new generation."""
    return state.generation > 0 and len(state.joined) < len(state.ranks)


def patience(state: st.RunState) -> float | None:
    """Seconds that ranks may stay as they are in a rejoin, or None where nothing limits that. A rank that does not wait is busy with its
    script, which may take any time."""
    if not isinstance(state.phase, st.Starting | st.Running) or not is_forming(state):
        return None
    if state.nodes[0].link != "up":
        return None  # ranks can't be told of the newest generation before its link is back
    if apart(state):
        return APART_LIMIT
    have_met = all(
        isinstance(phase, st.Alive) and (rank in state.joined or state.waits_of(rank) == state.generation)
        for rank, phase in enumerate(state.ranks)
    )
    return MEETING_LIMIT if have_met else None


def apart(state: st.RunState) -> list[int]:
    """Ranks that wait in an older generation than the newest, on nodes that are connected."""
    return [
        rank
        for node in up_nodes(state)
        for rank in node.ranks
        if isinstance(state.ranks[rank], st.Alive) and 0 <= state.waits_of(rank) < state.generation
    ]


def finished_before(state: st.RunState) -> list[int]:
    """Ranks that ended well without joining the newest generation, which can't form without them."""
    return [
        rank
        for rank, phase in enumerate(state.ranks)
        if isinstance(phase, st.Done) and phase.status == 0 and rank not in state.joined
    ]


def tell(state: st.RunState, news: st.RankNews) -> Step:
    """Puts news for the ranks into the store, if it was not put there before."""
    if news in state.news:
        return state, ()
    number = len(state.news)
    action = act.TellRanks(node=state.nodes[0].name, attempt=state.attempt, number=number, news=news)
    return replace(state, news=(*state.news, news)), (action,)


def tell_again(state: st.RunState, node: st.Node) -> tuple[AnyAction, ...]:
    """Repeats all news of this attempt if the node hosts the store: some may not have arrived."""
    if node.name != state.nodes[0].name:
        return ()
    return tuple(
        act.TellRanks(node=node.name, attempt=state.attempt, number=number, news=news)
        for number, news in enumerate(state.news)
    )


def rejoin(state: st.RunState, at: float) -> Step:
    """Starts the dead ranks for a new generation, and informs the others."""
    generation = state.generation + 1
    dead = set(dead_ranks(state))
    count = range(len(state.ranks))
    state = replace(
        state,
        phase=st.Starting(),
        generation=generation,
        generation_since=at,
        started_for=tuple(generation if rank in dead else state.generation_of(rank) for rank in count),
        ranks=tuple(st.Pending() if rank in dead else state.ranks[rank] for rank in count),
        joined=frozenset(),
        without_state=_without_state(state, dead),
        waits_in=tuple(-1 if rank in dead else state.waits_of(rank) for rank in count),
    )
    state, told = tell(state, ("generation", generation))
    return state, told + tuple(action for node in up_nodes(state) for action in spawn(state, node, dead))
