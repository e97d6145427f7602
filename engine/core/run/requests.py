"""Handlers of what users ask for: stop, restart, kill."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run.moves import Step, close, ignore, next_attempt, stop, up_nodes
from engine.core.run.rejoin import rejoin, why_no_rejoin
from engine.core.run.state import (
    Alive,
    Clearing,
    Closing,
    Done,
    Ended,
    Gone,
    Holding,
    Opening,
    Outcome,
    Pending,
    Restart,
    Running,
    RunState,
    Starting,
    Stopping,
)

RESTART_GUARD = 5.0
"""Seconds after the start of an attempt in which another restart request counts as the same one: a key pressed twice, a script that
retries. After another failure, a new request counts immediately."""


def stop_requested(state: RunState, event: ev.StopRequested) -> Step:
    """Stops the run. A stop wins over a restart under way, and a second stop may be more urgent than the first."""
    outcome = Outcome(word="stopped", reason=f"stopped by {event.by}")
    match state.phase:
        case Opening():
            return close(state, outcome, event.at)
        case Starting() | Running() | Holding():
            return stop(state, outcome, event.at, at_once=event.at_once)
        case Stopping(then=then, at_once=at_once):
            if isinstance(then, Outcome) and not event.at_once:
                return ignore(state, "the run is stopping already")
            then = outcome if isinstance(then, Restart) else then
            return stop(state, then, event.at, at_once=at_once or event.at_once)
        case Clearing(then=Restart()):
            return replace(state, phase=Clearing(then=outcome)), ()
        case Clearing() if event.at_once:
            waiting = [node.name for node in up_nodes(state) if not node.cleared]
            return state, tuple(act.ClearNode(node=name, attempt=state.attempt, at_once=True) for name in waiting)
        case Clearing() | Closing():
            return ignore(state, "the run is ending already")
        case Ended(outcome=ended):
            return ignore(state, f"the run has ended already: {ended.word}")
        case _ as never:
            assert_never(never)


def restart_requested(state: RunState, event: ev.RestartRequested) -> Step:
    """Lets the dead ranks rejoin where that is possible and enough, else starts the next attempt."""
    then = Restart(reason=f"restarted by {event.by}")
    match state.phase:
        case Starting() if state.generation > 0 and event.scope == "all":
            return stop(replace(state, restarts=0), then, event.at)
        case Opening() | Starting():
            return ignore(state, f"attempt {state.attempt} is starting already")
        case Running() if state.attempt > 0 and 0 <= event.at - state.attempt_since < RESTART_GUARD:
            return ignore(state, f"attempt {state.attempt} has only just started")
        case Running() if state.generation > 0 and 0 <= event.at - state.generation_since < RESTART_GUARD:
            return ignore(state, f"generation {state.generation} has only just begun")
        case Holding() if event.scope != "all" and not why_no_rejoin(state):
            return rejoin(replace(state, restarts=0), event.at)
        case Running() | Holding():
            return stop(replace(state, restarts=0), then, event.at)
        case Stopping(then=Restart()) | Clearing(then=Restart()):
            return ignore(state, f"attempt {state.attempt + 1} is coming already")
        case Stopping(then=Outcome(word="failed")):
            return replace(state, phase=replace(state.phase, then=then)), ()
        case Clearing(then=Outcome(word="failed")):
            return replace(state, phase=Clearing(then=then)), ()
        case Stopping() | Clearing() | Closing():
            return ignore(state, "the run is ending; restart it once it has ended")
        case Ended():
            return next_attempt(replace(state, phase=Opening(), restarts=0), event.at)
        case _ as never:
            assert_never(never)


def kill_requested(state: RunState, event: ev.KillRequested) -> Step:
    """Sends a signal to a rank that is alive on a connected node."""
    match state.ranks[event.rank]:
        case Alive():
            node = state.node_of(event.rank)
            if node.link != "up":
                return ignore(state, f"{node.name} is not reachable: {node.reason}")
            return state, (act.SignalRank(node=node.name, attempt=state.attempt, rank=event.rank, signal=event.signal),)
        case Pending():
            return ignore(state, f"rank {event.rank} has not started")
        case Done() | Gone():
            return ignore(state, f"rank {event.rank} has ended already")
        case _ as never:
            assert_never(never)
