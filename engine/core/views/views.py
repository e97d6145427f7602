"""Builds the values that front ends show from the state of a run and the numbers of its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.core.failures.collectives import Wait
from engine.core.metrics.health import RankHealth
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.resources import GpuUse, ProcessUse
from engine.core.metrics.stretches import Stretch
from engine.core.plan.plan import LaunchPlan
from engine.core.run import state as st
from engine.core.run.rejoin import dead_ranks, is_forming
from engine.core.views.activity import current_activity, next_restart
from engine.core.views.goodput import goodput
from engine.core.views.saved import newest_checkpoint, saved_view
from engine.core.views.view import FailureView, NodeView, RankView, RunView, StallView
from engine.core.words import rank_words

if TYPE_CHECKING:
    from engine.core.failures.verdict import Verdict, Witness


def rank_views(
    state: st.RunState,
    plan: LaunchPlan,
    ranks: Iterable[int],
    progress: Sequence[RankProgress],
    gpus: Mapping[int, GpuUse],
    health: Mapping[int, RankHealth] = MappingProxyType({}),
    processes: Mapping[int, ProcessUse] = MappingProxyType({}),
    stretches: Sequence[Stretch] = (),
) -> list[RankView]:
    """Ranks of the current attempt. `gpus` and `processes`: the use of resources, by rank, where it is known now. `stretches`: as for `run_view`."""
    newest = [one for one in stretches[-1:] if (one.attempt, one.generation) == (state.attempt, state.generation)]
    late = newest[0].late(len(state.ranks)) if newest else {}
    waits = ""
    if state.elastic and isinstance(state.phase, st.Holding):  # the dead ranks can rejoin
        waits = f"waits for {rank_words(dead_ranks(state))}"
    views = []
    for rank in ranks:
        phase, place, one = state.ranks[rank], plan.places[rank], progress[rank]
        is_alive = isinstance(phase, st.Alive)
        sick = health.get(rank) if is_alive else None
        is_stalled = sick is not None and sick.mark == "stalled"
        note = _note(phase, state.nodes[place.group_rank], one, waits) or (sick.words if sick else "")
        never_started = isinstance(phase, st.Pending) and isinstance(state.phase, st.Ended)
        views.append(
            RankView(
                rank=rank,
                node=place.node,
                local_rank=place.local_rank,
                pid=None if isinstance(phase, st.Pending) else phase.pid,
                state="stopped" if never_started else st.rank_word(phase),
                exit=phase.status if isinstance(phase, st.Done) else None,
                attempt=state.attempt,
                generation=max(state.generation_of(rank), state.generation if rank in state.joined else 0),
                step=one.step,
                loss=_finite(one.loss),
                loss_odd=_odd(one.loss),
                throughput=_finite(one.throughput) if is_alive and not is_stalled and not _rejoins(state) else None,
                unit=one.unit,
                gpu=gpus.get(rank) if is_alive else None,
                process=processes.get(rank) if is_alive else None,
                since=_since(state, phase),
                seen=one.seen,
                note="never started" if never_started else note,
                last_line=one.last_line,
                aside=one.aside if is_alive else "",
                is_derived=one.is_derived,
                out_size=one.out_size,
                err_size=one.err_size,
                health=sick.mark if sick is not None else "",
                health_since=sick.since if sick is not None else None,
                phase=one.phase if is_alive else "",
                late=late.get(rank),
            )
        )
    return views


def _rejoins(state: st.RunState) -> bool:
    """Whether living ranks wait for a rejoin, so that none of them makes steps."""
    return state.elastic and (isinstance(state.phase, st.Holding) or is_forming(state))


ORPHANS_WAIT = "its own processes wait for a store"


def _odd(value: float | None) -> str:
    return "" if value is None or math.isfinite(value) else str(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _since(state: st.RunState, phase: st.RankPhase) -> float:
    match phase:
        case st.Pending():
            return state.attempt_since
        case st.Alive(since=since):
            return since
        case st.Done(at=at) | st.Gone(at=at):
            return at


def _note(phase: st.RankPhase, node: st.Node, progress: RankProgress, waits: str) -> str:
    """Why a rank is as it is, or what it waits for; `waits`: what all living ranks wait for. Empty: there is nothing to say."""
    match phase:
        case st.Done(status=status, reason=reason) if status != 0:
            return reason or st.status_words(status)
        case st.Gone(reason=reason) if reason:
            return reason
        case st.Alive() if node.link == "down":
            return f"{node.name} is unreachable"
    if odd := _odd(progress.loss):
        return f"the loss is {odd}"
    meeting = {"joining": "waits for all ranks to join", "orphan": ORPHANS_WAIT}.get(progress.meeting, "")
    return (waits or meeting) if isinstance(phase, st.Alive) else ""


def run_view(
    state: st.RunState,
    plan: LaunchPlan,
    progress: Sequence[RankProgress],
    tails: Mapping[int, bytes],
    waits: tuple[Wait, ...] = (),
    stall: StallView | None = None,
    stretches: Sequence[Stretch] = (),
) -> RunView:
    """The run as a whole. `tails`: the end of stderr of ranks that failed, for the explanation. `stall`: which ranks hang. `stretches`: when it has made
    its steps."""
    newest = max(progress, key=lambda one: one.step if one.step is not None else -1)
    saved, unit = newest_checkpoint(progress), _unit(progress)
    losses = [one.loss for one in progress if one.loss is not None]
    loss = sum(losses) / len(losses) if losses else None
    is_pipeline = any(one.loss is None and one.placeholder is not None for one in progress)
    current = current_activity(state, progress)
    again = next_restart(state, progress, is_submitted=plan.submission is not None)
    return RunView(
        run=state.run,
        name=state.name,
        state=st.run_word(state),
        activity=current.activity,
        doing=current.words,
        attempt=state.attempt,
        generation=state.generation,
        world_size=len(state.ranks),
        backend=state.backend or plan.backend.name,
        program=plan.program.title,
        python=plan.shown_python,
        launched_at=state.launched_at,
        ended_at=state.phase.at if isinstance(state.phase, st.Ended) else None,
        attempt_since=state.attempt_since,
        alive=sum(isinstance(phase, st.Alive) for phase in state.ranks),
        step=newest.step,
        steps=newest.steps
        if newest.epoch_step is not None
        else max((one.steps for one in progress if one.steps is not None), default=None),
        epoch=newest.epoch,
        epochs=newest.epochs,
        epoch_step=newest.epoch_step,
        epoch_steps=newest.epoch_steps,
        aside=next((one.aside for _, one in _alive(state, progress) if one.aside), ""),
        is_derived=any(one.is_derived for one in progress),
        loss=_finite(loss),
        loss_odd=_odd(loss),
        loss_ranks=tuple(rank for rank, one in enumerate(progress) if one.loss is not None) if is_pipeline else (),
        throughput=_throughput(state, progress, stall),
        unit=unit,
        checkpoint=saved.checkpoint,
        checkpoint_at=saved.checkpoint_at,
        failure=failure_view(state, tails, waits, plan.shown_python),
        restart=again.words,
        restart_kind=again.kind,
        restart_ranks=again.ranks,
        stall=stall if isinstance(state.phase, st.Running) else None,
        saved=saved_view(state),
        goodput=goodput(state, stretches),
        swept=plan.swept,
        is_early=isinstance(state.phase, st.Ended) and state.phase.outcome.is_early,
        nodes=tuple(
            NodeView(name=node.name, ranks=node.ranks, link=node.link, reason=node.reason, since=node.since)
            for node in state.nodes
        ),
    )


def _alive(state: st.RunState, progress: Sequence[RankProgress]) -> Iterator[tuple[int, RankProgress]]:
    """The ranks that run, and their numbers."""
    for rank, (one, phase) in enumerate(zip(progress, state.ranks, strict=True)):
        if isinstance(phase, st.Alive):
            yield rank, one


def _unit(progress: Sequence[RankProgress]) -> str:
    """The unit of throughput, without `/s`; empty: none is known."""
    return next((one.unit for one in progress if one.unit), "")


def _throughput(state: st.RunState, progress: Sequence[RankProgress], stall: StallView | None) -> float | None:
    """The throughput of the run: the sum over its ranks, or their mean for iterations, which all ranks do together. Units per second.
    None while ranks wait for a rejoin."""
    if _rejoins(state):
        return None
    stalled = set(stall.ranks) if stall is not None else ()
    rates = [one.throughput for rank, one in _alive(state, progress) if one.throughput and rank not in stalled]
    return _finite(sum(rates) / (len(rates) if _unit(progress) == "it" else 1)) if rates else None


def failure_view(
    state: st.RunState, tails: Mapping[int, bytes], waits: tuple[Wait, ...] = (), python: str = ""
) -> FailureView | None:
    """Why a rank or the run failed; None if neither did."""
    if isinstance(state.phase, st.Ended) and state.phase.outcome.job_ended:
        reason = state.phase.outcome.reason
        return FailureView(rank=None, headline=reason, detail="", traceback="", hint="launch it again")
    cause = st.root_cause(state)
    if cause is None:
        if isinstance(state.phase, st.Ended) and state.phase.outcome.word == "failed":
            return FailureView(
                rank=None, headline="the run could not start", detail=state.phase.outcome.reason, traceback="", hint=""
            )
        return None
    verdict = _verdict(witnesses(state, tails, python), waits)
    assert verdict is not None
    no_restart = _no_restart(state)
    rank = verdict.rank
    if rank is None or rank >= len(state.ranks):  # a rank's output may name any number
        rank = cause[0]
    others = tuple(
        other for other, one in enumerate(state.ranks) if other != rank and st.rank_word(one) in ("failed", "lost")
    )
    notes = [f"restart: no, because {no_restart}" if no_restart else "", seen_words(state, rank)]
    return FailureView(
        rank=rank,
        headline=verdict.headline,
        detail=verdict.hedged,
        traceback=verdict.traceback,
        hint=verdict.hint,
        others=others,
        fix=verdict.fix,
        cause=verdict.cause,
        followed=(*filter(None, notes), *verdict.followed),
        no_restart=no_restart,
    )


def seen_words(state: st.RunState, rank: int | None) -> str:
    """The newest notice about a rank that others waited for, and that did not fail itself; empty: there is none."""
    late = state.late
    if rank is None or late is None or rank not in late.ranks or st.rank_word(state.ranks[rank]) in ("failed", "lost"):
        return ""
    return f"seen before the end: {late.text}"


def _no_restart(state: st.RunState) -> str:
    """Why no automatic restart followed; see `Outcome`."""
    match state.phase:
        case (
            st.Ended(outcome=outcome)
            | st.Stopping(then=st.Outcome() as outcome)
            | st.Clearing(then=st.Outcome() as outcome)
        ):
            return outcome.no_restart
        case _:
            return ""


MOST_STOPPED = 64  # most stopped ranks whose output is read: others may have waited for one of them


def told_ranks(state: st.RunState) -> list[int]:
    """The ranks whose output explains a failure; empty: none failed."""
    words = [st.rank_word(phase) for phase in state.ranks]
    failed = [rank for rank, word in enumerate(words) if word in ("failed", "lost")]
    return failed + [rank for rank, word in enumerate(words) if failed and word == "stopped"][:MOST_STOPPED]


UNKNOWN_END = "it ended for an unknown reason"  # detail of a lost rank without a reason


@lru_cache(maxsize=4)
def _verdict(witnesses: tuple[Witness, ...], waits: Sequence[Wait]) -> Verdict | None:
    """Cached: the view of a holding run is built ten times a second."""
    from engine.core.failures.verdict import find_verdict  # most runs don't fail

    return find_verdict(witnesses, waits)


def witnesses(state: st.RunState, tails: Mapping[int, bytes], python: str) -> tuple[Witness, ...]:
    """Each rank of the current attempt, for the verdict. `python`: the Python that ranks run; empty: not known."""
    return tuple(_witness(rank, phase, tails.get(rank, b""), python) for rank, phase in enumerate(state.ranks))


def _witness(rank: int, phase: st.RankPhase, tail: bytes, python: str) -> Witness:
    from engine.core.failures.verdict import Witness

    failed = st.rank_word(phase) in ("failed", "lost")
    match phase:
        case st.Done() as done if failed or done.status == 0:
            return Witness(rank=rank, output=tail, failed=failed, status=done.status, order=(done.order,),
                           secondary=done.secondary, reason=done.reason, by=done.by, python=python)  # fmt: skip
        case st.Gone(order=order, reason=reason) if failed:
            return Witness(
                rank=rank, output=tail, failed=True, order=(order,), secondary=False, reason=reason or UNKNOWN_END
            )
        case _:  # it had not ended by itself
            return Witness(rank=rank, output=tail, failed=False)
