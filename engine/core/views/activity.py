"""The activity of a run, and the effect of a restart: a typed value for decisions, and a sentence for people."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.core.metrics.progress import RankProgress
from engine.core.run import state as st
from engine.core.run.events import Scope
from engine.core.run.rejoin import apart, dead_ranks, is_forming, why_no_rejoin
from engine.core.run.requests import restart_kind
from engine.core.views.saved import newest_checkpoint, saved_view
from engine.core.views.view import Activity
from engine.core.words import rank_words


class CurrentActivity(NamedTuple):
    """The activity of a run, typed and in words; both are empty where there is nothing to report."""

    activity: Activity
    words: str


class NextRestart(NamedTuple):
    """The effect of a restart. `ranks`: the ranks that a rejoin starts; empty for any other kind."""

    kind: st.RestartKind
    ranks: tuple[int, ...]
    words: str


def current_activity(state: st.RunState, progress: Sequence[RankProgress]) -> CurrentActivity:
    away = ", ".join(node.name for node in state.nodes if node.link != "up")
    match state.phase:
        case st.Opening():
            return CurrentActivity("connecting", f"waiting for {away}")
        case st.Starting():
            if state.store_port is None:
                return CurrentActivity("opening_store", "opening the store")
            started = sum(not isinstance(phase, st.Pending) for phase in state.ranks)
            return CurrentActivity("starting_ranks", f"starting ranks, {started} of {len(state.ranks)}")
        case st.Running() | st.Holding():
            if away:
                return CurrentActivity("node_away", f"no connection to {away}; its ranks keep running")
            if state.store_trouble:
                return CurrentActivity("store_lost", f"the store is lost: {state.store_trouble}")
            if isinstance(state.phase, st.Running) and is_forming(state):
                absent = [rank for rank in range(len(state.ranks)) if rank not in state.joined]
                words = f"rejoining; {rank_words(absent)} not in generation {state.generation} yet"
                late = apart(state)
                words += f", {rank_words(late)} still in an earlier one" if late else ""
                return CurrentActivity("rejoining", words)
            missing = _missing_words(state, progress)
            if not missing and (over := over_words(state)):
                return CurrentActivity("rejoined", over)
            return CurrentActivity("joining" if missing else "", missing)
        case st.Stopping(then=st.Restart(reason=reason)) | st.Clearing(then=st.Restart(reason=reason)):
            return CurrentActivity("restarting", f"restarting as attempt {state.attempt + 1} ({reason})")
        case st.Stopping(then=st.Outcome(reason=reason)) | st.Clearing(then=st.Outcome(reason=reason)) if reason:
            return CurrentActivity("stopping", f"stopping ({reason})")
        case st.Stopping() | st.Clearing() | st.Closing():
            return CurrentActivity("clearing", "ending remaining processes")
        case st.Ended(outcome=outcome):
            saved = saved_view(state)
            return CurrentActivity("ended", "; ".join(filter(None, (outcome.reason, saved.words if saved else ""))))


def _missing_words(state: st.RunState, progress: Sequence[RankProgress]) -> str:
    """Which ranks have not joined while others wait in the setup of their process group; empty: none waits."""
    alive = [rank for rank, phase in enumerate(state.ranks) if isinstance(phase, st.Alive)]
    if lost := [rank for rank in alive if progress[rank].meeting == "orphan"]:
        return orphan_words(lost)
    waiting = sum(progress[rank].meeting == "joining" for rank in alive)
    missing = [rank for rank in alive if not progress[rank].meeting]
    if not waiting or not missing:
        return ""
    verb = "has" if len(missing) == 1 else "have"
    return f"{rank_words(missing)} {verb} not joined yet; {waiting} of {len(state.ranks)} wait"


def orphan_words(ranks: Sequence[int]) -> str:
    """The sentence about ranks whose own processes wait for a store, with the next step."""
    verb = "starts" if len(ranks) == 1 else "start"
    return (
        f"{rank_words(ranks)} {verb} processes that wait for a store that no process hosts; if the script starts its own ranks, set "
        'launch.environment = "plain" and layout.ranks_per_node = 1'
    )


def over_words(state: st.RunState) -> str:
    """Over which backend ranks go on since one of them has come back, if it is another one; otherwise empty."""
    return f"over {state.over} instead of {state.backend} until the next attempt" if state.over else ""


def next_restart(
    state: st.RunState, progress: Sequence[RankProgress], scope: Scope = "smallest", *, is_submitted: bool = False
) -> NextRestart:
    """The effect of a restart now. `is_submitted`: whether the run is a job of its own, so that it goes on in another one."""
    kind, phase = restart_kind(state, scope), state.phase
    count, dead = len(state.ranks), dead_ranks(state)
    if kind == "none" or (isinstance(phase, st.Ended) and phase.outcome.job_ended and not is_submitted):
        return NextRestart("none", (), "")
    if kind == "rejoin":
        alive = count - len(dead)
        goes_on = f"the other {alive} keep running" if alive > 1 else "the other keeps running"
        return NextRestart(kind, tuple(dead), f"rejoin {rank_words(dead)}; {goes_on}")
    words = f"start attempt {state.attempt + 1} of {'all ' if count > 1 else ''}{count} rank{'s' if count > 1 else ''}"
    alive = sum(isinstance(phase, st.Alive) for phase in state.ranks)
    if alive and not isinstance(state.phase, st.Stopping):
        words = f"stop the {alive} that run and {words}"
    if isinstance(phase, st.Ended) and is_submitted:
        words = f"submit another job, to {words}"
    words += _lost_words(state, progress)
    if scope != "all" and isinstance(state.phase, st.Holding):
        words += f" (no rejoin: {why_no_rejoin(state)})"
    return NextRestart(kind, (), words)


def _lost_words(state: st.RunState, progress: Sequence[RankProgress]) -> str:
    """Which steps a new attempt repeats; empty: none was reported."""
    step = max(one.step or 0 for one in progress)
    saved = newest_checkpoint(progress).checkpoint
    if state.saved is not None and state.saved.found.newest is not None:
        saved = state.saved.found.newest.step
    if not step:
        return ""
    if saved is None:
        return f"; no checkpoint was reported, so up to {step} steps are lost"
    lost = max(0, step - saved)
    return f"; the newest checkpoint is of step {saved}, so {lost} step{' is' if lost == 1 else 's are'} lost"
