"""Handlers of what happens to the store of the current attempt."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.moves import Step, any_rank, ignore, spawn, stop, up_nodes
from engine.core.run.rejoin import is_forming


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
        case _ as never:
            assert_never(never)


def store_lost(state: st.RunState, event: ev.StoreLost) -> Step:
    """Decides what follows when the store ends or can't start: the run fails, all ranks start again, or the loss is only noted.

    Ranks that have joined no longer need the store and keep running. Ranks that are about to rejoin can't meet without it, so all
    start again as the next attempt.
    """
    match state.phase:
        case st.Starting() if state.store_port is None:
            return stop(state, st.Outcome(word="failed", reason=f"the store could not start: {event.reason}"), event.at)
        case st.Starting() | st.Running() if is_forming(state):
            reason = f"the store was lost while ranks rejoined: {event.reason}"
            return stop(replace(state, store_trouble=event.reason), st.Restart(reason=reason), event.at)
        case st.Holding() if not any_rank(state, st.Alive):
            return ignore(state, "no rank needs the store")
        case st.Starting() | st.Running() | st.Holding():
            if state.store_trouble:
                return ignore(state, "that is known")
            return replace(state, store_trouble=event.reason), ()
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the store is no longer needed")
        case _ as never:
            assert_never(never)
