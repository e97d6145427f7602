"""Decides what follows when a rank fails: another backend, a rejoin, or the profile's `launch.on_failure`."""

from msgspec.structs import replace

from engine.core.run import state as st
from engine.core.run.health_events import ON_NAN
from engine.core.run.moves import Step, stop
from engine.core.run.rejoin import EXIT_TO_BE_REPLACED, rejoin, tell, why_no_rejoin
from engine.core.run.state import cause_words, root_cause


def on_failure(state: st.RunState, at: float) -> Step:
    """Decides what follows after a rank failed or was lost: a rejoin of this rank alone, a new attempt, another backend, a hold, or the end."""
    cause = root_cause(state)
    assert cause is not None
    rank, phase = cause
    if isinstance(phase, st.Done) and may_fall_back(state):
        why = f"{state.backend} failed on {state.node_of(rank).name}, rank {rank}: {phase.setup_error}"
        return stop(state, st.Restart(reason=f"{why}; running on {state.fallback[0].backend}", falls_back=True), at)
    reason = _words_with_store(state, rank, phase)
    state, told = tell(state, ("lost", state.generation)) if state.elastic and not state.start_together else (state, ())
    if isinstance(phase, st.Done) and _wants_replacement(state, rank, phase):
        state, actions = _rejoin_uncounted(state, at)
        return state, told + actions
    state, actions = _follow_policy(state, rank, phase, reason, at)
    return state, told + actions


def with_cause(state: st.RunState, phase: st.Stopping) -> st.Stopping:
    """Corrects the reason of the next step, where a rank that failed by itself first was seen to end after the ranks that lost it."""
    cause = root_cause(state)
    if not phase.cause or cause is None or (words := _words_with_store(state, *cause)) == phase.cause:
        return phase
    reason = words + phase.then.reason.removeprefix(phase.cause)
    return replace(phase, cause=words, then=replace(phase.then, reason=reason))


def _words_with_store(state: st.RunState, rank: int, phase: st.Done | st.Gone) -> str:
    words = cause_words(rank, phase)
    if not state.store_trouble or rank in state.joined or "mpi" in state.backend:
        return words
    return f"{words}; the store was lost before it had joined: {state.store_trouble}"


def _wants_replacement(state: st.RunState, rank: int, phase: st.Done) -> bool:
    """Whether a rank ended to be replaced in the current rejoin, which needs no decision of the user. Besides the exit status, its
    process must be older than the new generation, and must not have joined it."""
    is_left_behind = state.generation_of(rank) < state.generation and rank not in state.joined
    return phase.status == EXIT_TO_BE_REPLACED and is_left_behind and _may_rejoin_uncounted(state)


def _may_rejoin_uncounted(state: st.RunState) -> bool:
    """Whether dead ranks may rejoin without counting as a restart: at most once for each rank until all have joined."""
    return state.free_rejoins < len(state.ranks) and not why_no_rejoin(state)


def _rejoin_uncounted(state: st.RunState, at: float) -> Step:
    return rejoin(replace(state, free_rejoins=state.free_rejoins + 1), at)


def may_fall_back(state: st.RunState) -> bool:
    """Whether the root cause is a process group that could not be set up, and the profile has a fallback. A rank that was killed, or that
    only lost its connection to others, does not trigger the fallback."""
    cause = root_cause(state)
    if cause is None or not state.fallback or state.joined or state.generation:
        return False
    _, phase = cause
    if not isinstance(phase, st.Done) or not phase.setup_error or phase.secondary:
        return False
    return phase.status > 0 or -phase.status in st.CRASHES


def _follow_policy(state: st.RunState, rank: int, phase: st.Done | st.Gone, reason: str, at: float) -> Step:
    if isinstance(phase, st.Done) and phase.by == ON_NAN:
        return replace(state, phase=st.Holding(since=at)), ()
    match state.on_failure:
        case "hold":
            return replace(state, phase=st.Holding(since=at)), ()
        case "restart":
            return _restart_or_fail(state, rank, phase, reason, at)
        case _:
            return stop(state, st.Outcome(word="failed", reason=reason), at, cause=reason)


def _why_it_would_fail_again(state: st.RunState, phase: st.Done | st.Gone) -> str:
    """Why the same run would fail again; empty if it may succeed, or nothing certain is known. That is so if the root cause is certain
    and does not heal by itself, or if two attempts raised an exception at the same place after the same step."""
    if state.restart_when == "always" or not isinstance(phase, st.Done) or phase.secondary:
        return ""
    if not phase.no_retry and _failed_alike(state, phase) and state.failed_in < state.attempt:
        return f"two attempts raised the same exception at the same place {f'after step {phase.step}' if phase.step else 'before the first step'}"
    return phase.no_retry


def _failed_alike(state: st.RunState, phase: st.Done | st.Gone) -> bool:
    """Whether the failure before this one was an exception at the same place, after the same step or one beside it."""
    place, step = state.failed_at or ("", None)
    is_place = isinstance(phase, st.Done) and bool(phase.place) and place == phase.place
    return is_place and abs((step or 0) - (phase.step or 0)) <= 1


def _restart_or_fail(state: st.RunState, rank: int, phase: st.Done | st.Gone, reason: str, at: float) -> Step:
    is_incomplete = 0 < len(state.joined) < len(state.ranks) or (state.generation > 0 and not state.joined)
    if is_incomplete and state.generation_of(rank) < state.generation and _may_rejoin_uncounted(state):
        return _rejoin_uncounted(state, at)  # several ranks died together: they count as one restart
    if state.restarts >= state.max_restarts:
        outcome = st.Outcome(word="failed", reason=f"{reason}, after {state.restarts} restarts")
        return stop(state, outcome, at, cause=reason)
    if why := _why_it_would_fail_again(state, phase):
        outcome = st.Outcome(word="failed", reason=f"{reason}; restart: no, because {why}", no_restart=why)
        return stop(state, outcome, at, cause=reason)
    failed_at = (phase.place, phase.step) if isinstance(phase, st.Done) and phase.place else None
    # A process that took the place of another one and failed like it does not show that all ranks would fail if they started again.
    is_in_vain = _failed_alike(state, phase)
    state = replace(state, restarts=state.restarts + 1, failed_at=failed_at, failed_in=state.attempt)
    if not is_in_vain and not why_no_rejoin(state):
        return rejoin(state, at)
    restart = st.Restart(reason=f"{reason}; restart {state.restarts} of {state.max_restarts}")
    return stop(state, restart, at, cause=reason)
