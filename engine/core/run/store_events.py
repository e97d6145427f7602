"""Handlers of what happens to the store of the current attempt."""

from msgspec.structs import replace

from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.moves import Step, any_rank, ignore, spawn, stop, up_nodes
from engine.core.run.rejoin import is_forming
from engine.core.words import rank_words


def store_opened(state: st.RunState, event: ev.StoreOpened) -> Step:
    """Starts the ranks: the store accepts connections now."""
    match state.phase:
        case st.Starting():
            if state.store_port is not None:
                return ignore(state, "the store is open already")
            state = replace(state, store_port=event.port, store_address=event.address, interfaces=event.interfaces)
            return state, tuple(action for node in up_nodes(state) for action in spawn(state, node))
        case st.Opening() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the run does not wait for a store")


NO_TORCH = 69
"""Exit status of a store without torch, as in `rankdeck/store_host.py`: its ranks need none. After any other failure no rank can join."""


def store_lost(state: st.RunState, event: ev.StoreLost) -> Step:
    """Decides what follows when the store ends or can't start: the run fails, all ranks start again, or the loss is only noted. Ranks
    that have joined no longer need the store and keep running; for those that have not, see `store_missed`. Ranks that are about to
    rejoin can't meet without it, so all start again as the next attempt."""
    trouble = f"{event.reason}; {event.advice}" if event.advice else event.reason
    match state.phase:
        case st.Starting() if state.store_port is None:
            return stop(state, st.Outcome(word="failed", reason=f"the store could not start: {trouble}"), event.at)
        case st.Starting() | st.Running() if (
            (event.status or 0) > 0 and event.status != NO_TORCH and not state.joined and "mpi" not in state.backend
        ):
            outcome = st.Outcome(word="failed", reason=f"the store could not start: {trouble}")
            return stop(replace(state, store_trouble=trouble), outcome, event.at, at_once=True)
        case st.Starting() | st.Running() if is_forming(state):
            reason = f"the store was lost while ranks rejoined: {event.reason}"
            return stop(replace(state, store_trouble=trouble), st.Restart(reason=reason), event.at)
        case st.Holding() if not any_rank(state, st.Alive):
            return ignore(state, "no rank needs the store")
        case st.Starting() | st.Running() | st.Holding():
            if state.store_trouble:
                return ignore(state, "that is known")
            return replace(state, store_trouble=trouble), ()
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the store is no longer needed")


def store_missed(state: st.RunState, event: ev.StoreMissed) -> Step:
    """Ends ranks that wait for a store which is gone. A new attempt follows where the profile restarts, else the end of the run."""
    if not state.store_trouble or not isinstance(state.phase, st.Starting | st.Running):
        return ignore(state, "no rank needs the store")
    reason = f"the store was lost before {rank_words(event.ranks)} had joined: {state.store_trouble}"
    if state.on_failure == "restart" and state.restarts < state.max_restarts:
        state = replace(state, restarts=state.restarts + 1)
        restart = st.Restart(reason=f"{reason}; restart {state.restarts} of {state.max_restarts}")
        return stop(state, restart, event.at, at_once=True)
    return stop(state, st.Outcome(word="failed", reason=reason), event.at, at_once=True)
