"""A run that holds: when it ends by itself, and since when it needs nothing on its nodes."""

from __future__ import annotations

from typing import assert_never

from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.moves import Step, ignore, stop

IDLE_LIMIT = 600.0
"""Seconds after which a run that holds without a living rank lets go of its template and store, which have torch in memory. A restart
imports torch again, which takes some seconds."""


def hold_ends_at(state: st.RunState, hold_for: float) -> float | None:
    """When a run that holds ends by itself, in seconds since the epoch; None: never, or it does not hold. `hold_for`: the profile's limit
    in seconds; 0: none."""
    return state.phase.since + hold_for if isinstance(state.phase, st.Holding) and hold_for else None


def idle_since(state: st.RunState) -> float | None:
    """Since when a run holds without a living rank, in seconds since the epoch; None: it does not."""
    if not isinstance(state.phase, st.Holding):
        return None
    ended = [phase.at for phase in state.ranks if isinstance(phase, st.Done | st.Gone)]
    return max(ended) if len(ended) == len(state.ranks) else None


def hold_overdue(state: st.RunState, event: ev.HoldOverdue) -> Step:
    """Ends a run that nobody has restarted in time."""
    match state.phase:
        case st.Holding():
            reason = f"nobody restarted it within {event.seconds:g} s (launch.hold_for)"
            return stop(state, st.Outcome(word="failed", reason=reason), event.at)
        case st.Opening() | st.Starting() | st.Running() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the run does not hold any more")
        case _ as never:
            assert_never(never)
