"""Handlers of what happens to the ranks of the current attempt."""

from msgspec.structs import replace

from engine.core.run import events as ev
from engine.core.run import state as st
from engine.core.run.failure_policy import may_fall_back, on_failure, with_cause
from engine.core.run.moves import Step, any_rank, clear, ignore, is_ending, set_rank, stop
from engine.core.run.rejoin import apart, finished_before, is_forming
from engine.core.words import rank_words


def rank_spawned(state: st.RunState, event: ev.RankSpawned) -> Step:
    """Notes the process of a rank. With the last one, the run is running."""
    match state.phase:
        case st.Starting() | st.Running() | st.Holding() | st.Stopping():
            if not isinstance(state.ranks[event.rank], st.Pending):
                return ignore(state, f"rank {event.rank} has started already")
            state = set_rank(state, event.rank, st.Alive(pid=event.pid, since=event.at))
            if isinstance(state.phase, st.Starting) and not any_rank(state, st.Pending):
                state = replace(state, phase=st.Running())
            return state, ()
        case st.Opening() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "no rank was to be started")


def rank_waiting(state: st.RunState, event: ev.RankWaiting) -> Step:
    match state.phase:
        case st.Starting() | st.Running() | st.Holding():
            if event.generation <= state.waits_of(event.rank) or event.generation < state.generation_of(event.rank):
                return ignore(state, f"rank {event.rank} has got further, or is another process")
            return _set_waits(state, event.rank, event.generation), ()
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the attempt is over")


def _set_waits(state: st.RunState, rank: int, generation: int) -> st.RunState:
    waits = list(state.waits_in or (-1,) * len(state.ranks))
    waits[rank] = generation
    return replace(state, waits_in=tuple(waits))


def rejoin_overdue(state: st.RunState, event: ev.RejoinOverdue) -> Step:
    """Starts all ranks again, as the next attempt. The rejoin has counted as a restart, so this does not count again."""
    is_forming_it = is_forming(state) and event.generation == state.generation
    if not is_forming_it or not isinstance(state.phase, st.Starting | st.Running):
        return ignore(state, f"ranks do not rejoin in generation {event.generation} any more")
    late = apart(state)
    named = f"{rank_words(late)} did not notice generation {state.generation}"
    return stop(state, st.Restart(reason=named if late else f"generation {state.generation} did not form"), event.at)


def rank_joined(state: st.RunState, event: ev.RankJoined) -> Step:
    """Notes that a rank has joined a generation, which also shows that its script can rejoin."""
    match state.phase:
        case st.Starting() | st.Running() | st.Holding():
            joined = state.joined | {event.rank} if event.generation == state.generation else state.joined
            waits = 0 <= state.waits_of(event.rank) <= event.generation
            if state.elastic and joined == state.joined and not waits:
                return ignore(state, f"rank {event.rank} was known to be in generation {event.generation}")
            free_rejoins = 0 if len(joined) == len(state.ranks) else state.free_rejoins
            state = _set_waits(state, event.rank, -1) if waits else state
            without = frozenset() if joined else state.without_state  # a generation that has formed shares the state
            state = replace(state, elastic=True, joined=joined, without_state=without)
            return replace(state, free_rejoins=free_rejoins, over=event.over), ()
        case st.Opening() | st.Stopping() | st.Clearing() | st.Closing() | st.Ended():
            return ignore(state, "the attempt is over")


def checkpoints_found(state: st.RunState, event: ev.CheckpointsFound) -> Step:
    """Notes what the attempt has left. A checkpoint that was set aside explains the exception at which the attempt ended. If ranks and agents
    were killed together, the state still has the ranks as they were before."""
    match state.phase:
        case st.Opening() | st.Ended():
            return ignore(state, "the attempt has not begun, or the run has ended")
        case st.Starting() | st.Running() | st.Holding() | st.Stopping() | st.Clearing() | st.Closing():
            if state.saved is not None:
                return ignore(state, "it was known already")
            return replace(state, saved=event, failed_at=None if event.found.moved else state.failed_at), ()


def rank_ended(state: st.RunState, event: ev.RankEnded) -> Step:
    """Notes how a rank ended, and decides what follows."""
    phase = state.ranks[event.rank]
    if isinstance(phase, st.Done | st.Gone):
        return ignore(state, f"rank {event.rank} has ended already")
    done = st.Done(
        pid=phase.pid if isinstance(phase, st.Alive) else None,
        status=event.status,
        at=event.at,
        order=state.ends,
        asked=is_ending(state) and not _failed_before(state, event),
        step=event.step,
        reason=event.reason,
        secondary=event.secondary,
        by=event.by,
        setup_error=event.setup_error,
        no_retry=event.no_retry,
        place=event.place,
    )
    state = replace(set_rank(state, event.rank, done), ends=state.ends + 1)
    return _take_end(state, event.at, failed=event.status != 0)


def _failed_before(state: st.RunState, event: ev.RankEnded) -> bool:
    """Whether a rank failed before it was told to stop, although the failure of another one, which may follow from it, was seen first."""
    is_cause_sought = isinstance(state.phase, st.Stopping) and bool(state.phase.cause)
    return is_cause_sought and event.by_itself and event.status != 0 and not event.secondary


def rank_lost(state: st.RunState, event: ev.RankLost) -> Step:
    """Notes that a rank is gone for an unknown reason, and decides what follows."""
    phase = state.ranks[event.rank]
    if isinstance(phase, st.Done | st.Gone):
        return ignore(state, f"rank {event.rank} has ended already")
    gone = st.Gone(
        pid=phase.pid if isinstance(phase, st.Alive) else None,
        reason=event.reason,
        at=event.at,
        order=state.ends,
        asked=is_ending(state) and not event.alive,
        step=event.step,
    )
    return _take_end(replace(set_rank(state, event.rank, gone), ends=state.ends + 1), event.at, failed=True)


def _take_end(state: st.RunState, at: float, *, failed: bool) -> Step:
    """Decides what follows from the end of a rank, after the end itself was noted."""
    match state.phase:
        case st.Starting() | st.Running():
            if failed:
                return on_failure(state, at)
            if is_forming(state) and (finished := finished_before(state)):
                why = f"{rank_words(finished)} finished before generation {state.generation} had formed"
                return stop(state, st.Restart(reason=why), at)
            if any_rank(state, st.Pending):
                return state, ()
            if any_rank(state, st.Alive):
                return replace(state, phase=st.Running()), ()
            return clear(state, st.Outcome(word="succeeded", reason=""), at)
        case st.Stopping() as phase:
            phase = with_cause(state, phase) if failed else phase
            return (replace(state, phase=phase), ()) if any_rank(state, st.Alive) else clear(state, phase.then, at)
        case st.Holding() if failed and may_fall_back(state):
            return on_failure(state, at)  # the ranks that failed before only lost their connection
        case st.Opening() | st.Holding() | st.Clearing() | st.Closing() | st.Ended():
            return state, ()
