"""Users' requests (stop, restart, kill), and a run that holds for one."""

from msgspec.structs import replace

from engine.core.run import actions as act
from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.health_events import ON_NAN
from engine.core.run.moves import Step, close, ignore, next_attempt, stop, up_nodes
from engine.core.run.rejoin import rejoin, why_no_rejoin
from engine.core.run.state import cause_words, root_cause

RESTART_GUARD = 5.0
"""Seconds after the start of an attempt in which another restart request counts as the same one: a key pressed twice, a script that
retries. After another failure, a new request counts immediately."""


def stop_requested(state: st.RunState, event: ev.StopRequested) -> Step:
    """Stops the run. A stop wins over a restart under way, and a second stop may be more urgent than the first. A run that holds has
    failed, whoever ends it, unless it holds because a user has killed a rank."""
    outcome = st.Outcome(
        word="queued" if event.again else "stopped", reason=f"stopped by {event.by}", by_job=event.by_job
    )
    match state.phase:
        case st.Opening():
            return close(state, outcome, event.at)
        case st.Holding() if not event.again and (cause := root_cause(state)) is not None and not _was_killed(cause[1]):
            failed = st.Outcome(word="failed", reason=cause_words(*cause))
            return stop(state, failed, event.at, at_once=event.at_once, cause=failed.reason)
        case st.Starting() | st.Running() | st.Holding():
            return stop(state, outcome, event.at, at_once=event.at_once)
        case st.Stopping(then=then, at_once=at_once):
            is_replaced = isinstance(then, st.Restart) or _is_replaced(then, outcome)
            if not is_replaced and not event.at_once:
                return ignore(state, "the run is stopping already")
            then = outcome if is_replaced else then
            return stop(state, then, event.at, at_once=at_once or event.at_once)
        case st.Clearing(then=st.Restart()):
            return replace(state, phase=st.Clearing(then=outcome)), ()
        case st.Clearing(then=st.Outcome() as ending) if _is_replaced(ending, outcome) and (
            event.again or not event.at_once
        ):
            return replace(state, phase=st.Clearing(then=outcome)), ()
        case st.Closing(outcome=ending) if _is_replaced(ending, outcome):
            return replace(state, phase=st.Closing(outcome=outcome)), ()
        case st.Clearing() if event.at_once:
            waiting = [node.name for node in up_nodes(state) if not node.cleared]
            return state, tuple(act.ClearNode(node=name, attempt=state.attempt, at_once=True) for name in waiting)
        case st.Clearing() | st.Closing():
            return ignore(state, "the run is ending already")
        case st.Ended(outcome=ended) if _is_replaced(ended, outcome):
            return replace(state, phase=st.Ended(outcome=outcome, at=event.at)), ()
        case st.Ended(outcome=ended):
            return ignore(state, f"the run has ended already: {ended.word}")


def _was_killed(phase: st.Done | st.Gone) -> bool:
    return isinstance(phase, st.Done) and phase.by not in ("", ON_NAN)


def _is_replaced(ending: st.Outcome, outcome: st.Outcome) -> bool:
    """Whether a run that another job would continue ends now, or another job continues a run that ends with its job, unless a user has ended it."""
    if outcome.word == "queued":
        return ending.job_ended or ending.by_job
    return ending.word == "queued" or (ending.by_job and not outcome.by_job)


def restart_kind(state: st.RunState, scope: ev.Scope) -> st.RestartKind:
    """The kind of restart that is possible now: start the dead ranks, start the next attempt, or nothing."""
    match state.phase:
        case st.Holding() if scope != "all" and not why_no_rejoin(state):
            return "rejoin"
        case st.Ended(outcome=st.Outcome(word="queued")):
            return "none"
        case st.Running() | st.Holding() | st.Ended():
            return "attempt"
        case st.Stopping(then=st.Outcome(word="failed", job_ended=False)):
            return "attempt"
        case st.Clearing(then=st.Outcome(word="failed", job_ended=False)):
            return "attempt"
        case st.Starting() if state.generation > 0 and scope == "all":
            return "attempt"
        case st.Opening() | st.Starting() | st.Stopping() | st.Clearing() | st.Closing():
            return "none"


def restart_requested(state: st.RunState, event: ev.RestartRequested) -> Step:
    """Lets the dead ranks rejoin where that is possible and enough, else starts the next attempt."""
    if reason := _why_no_restart(state, event):
        return ignore(state, reason)
    then = st.Restart(reason=f"restarted by {event.by}")
    match state.phase:
        case st.Stopping() as phase:
            return replace(state, phase=replace(phase, then=then, cause="")), ()
        case st.Clearing() as phase:
            return replace(state, phase=replace(phase, then=then)), ()
        case st.Ended():
            return next_attempt(replace(state, phase=st.Opening(), restarts=0, failed_at=None), event.at)
    state = replace(state, restarts=0, failed_at=None)
    is_rejoin = restart_kind(state, event.scope) == "rejoin"
    return rejoin(state, event.at) if is_rejoin else stop(state, then, event.at)


def _why_no_restart(state: st.RunState, event: ev.RestartRequested) -> str:
    if isinstance(state.phase, st.Running):
        if state.attempt > 0 and 0 <= event.at - state.attempt_since < RESTART_GUARD:
            return f"attempt {state.attempt} has only just started"
        if state.generation > 0 and 0 <= event.at - state.generation_since < RESTART_GUARD:
            return f"generation {state.generation} has only just begun"
    if restart_kind(state, event.scope) != "none":
        return ""
    match state.phase:
        case st.Opening() | st.Starting():
            return f"attempt {state.attempt} is starting already"
        case st.Stopping(then=st.Restart()) | st.Clearing(then=st.Restart()):
            return f"attempt {state.attempt + 1} starts once all ranks have ended, unless somebody stops the run"
        case st.Ended():
            return "it waits for the job that continues it"
        case _:
            return "the run is ending; restart it once it has ended"


def refuses_restart(state: st.RunState) -> bool:
    """Whether the run is ending or waits for its next job. Any other restart that is ignored is under way already."""
    match state.phase:
        case st.Stopping(then=st.Outcome()) | st.Clearing(then=st.Outcome()) | st.Closing() | st.Ended():
            return True
        case _:
            return False


def is_about_to_start(state: st.RunState, rank: int) -> bool:
    """Whether a rank has no process yet and gets one now. `rank` may be one that the run does not have."""
    pending = rank < len(state.ranks) and isinstance(state.ranks[rank], st.Pending)
    return pending and isinstance(state.phase, st.Opening | st.Starting)


def kill_requested(state: st.RunState, event: ev.KillRequested) -> Step:
    """Sends a signal to a rank that is alive on a connected node."""
    match state.ranks[event.rank]:
        case st.Alive(pid=pid) if event.pid not in (None, pid):
            return ignore(state, f"you saw process {event.pid}; process {pid} has replaced it")
        case st.Alive():
            node = state.node_of(event.rank)
            if node.link != "up":
                return ignore(state, f"{node.name} is not reachable: {node.reason}")
            return state, (act.SignalRank(node=node.name, attempt=state.attempt, rank=event.rank, signal=event.signal),)
        case st.Pending():
            return ignore(state, f"rank {event.rank} has not started")
        case st.Done() | st.Gone():
            return ignore(state, f"rank {event.rank} has ended already")


IDLE_LIMIT = 600.0
"""Seconds after which a run that holds without a living rank lets go of its template and store, which have torch in memory. A restart
imports torch again, which takes some seconds."""


def hold_ends_at(state: st.RunState, hold_for: float) -> float | None:
    """The time at which a run stops holding and ends by itself, in seconds since the epoch; None: never, or it does not hold. `hold_for`: the profile's limit
    in seconds; 0: none."""
    return state.phase.since + hold_for if isinstance(state.phase, st.Holding) and hold_for else None


def idle_since(state: st.RunState) -> float | None:
    """Since when a run holds without a living rank, in seconds since the epoch; None: it does not hold, or a rank lives."""
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
