"""A run's events as sentences. An action of all ranks is one sentence, not one for each rank."""

from collections.abc import Iterable

from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import states
from engine.core.run.state import Clearing, Ended, Outcome, Restart, Running, RunState, Stopping, status_words
from engine.core.views.activity import over_words
from engine.core.views.saved import saved_view
from engine.core.views.view import EventLine
from engine.core.words import count, import_words, preload_words, rank_words

RELIEF = ("moving", "even", "restored", "early")  # kinds of notices about health that need no action of a user


def tell(seq: int, event: AnyEvent, before: RunState | None, after: RunState) -> EventLine | None:
    """One line about an event that changed the run; None if it needs no line of its own."""
    try:
        text, level = _words(event, before, after)
    except Exception:  # noqa: BLE001 - a defect: no run fails for a sentence
        text, level = type(event).__name__, "info"
    is_end = isinstance(after.phase, Ended) and (before is None or not isinstance(before.phase, Ended))
    if is_end:
        assert isinstance(after.phase, Ended)
        outcome = after.phase.outcome
        words = {"stopped": "was stopped", "queued": "waits for its next job"}
        text = f"the run {words.get(outcome.word, outcome.word)}" + (f": {outcome.reason}" if outcome.reason else "")
        level = {"succeeded": "info", "failed": "error", "stopped": "warning", "queued": "warning"}[outcome.word]
    return EventLine(seq=seq, at=event.at, text=text, level=level, is_end=is_end) if text else None


def tell_all(events: Iterable[AnyEvent]) -> list[EventLine]:
    """The story of a whole journal."""
    lines: list[EventLine] = []
    for event, before, after in states(events):
        if line := tell(len(lines), event, before, after):
            lines.append(line)
    return lines


def _words(event: AnyEvent, before: RunState | None, after: RunState) -> tuple[str, str]:
    match event:
        case ev.RunLaunched(name=name, python=python, backend=backend, backend_note=note, backend_is_auto=is_auto):
            launched = f"{name} launched {count(len(after.ranks), 'rank')}" + (f" of {python}" if python else "")
            if not note:
                return launched, "info"
            return f"{launched} on {backend}; {note}", "notice" if is_auto else "warning"
        case ev.SupervisorStarted():
            return "a new supervisor took over", "warning"
        case ev.NodeConnected(node=node, ranks=ranks):
            return f"the agent on {node} is connected" + (f"; it has {len(ranks)} ranks" if ranks else ""), "info"
        case ev.NodeDisconnected(node=node, reason=reason):
            return f"the link to {node} broke: {reason}", "warning"
        case ev.NodeGivenUp(node=node, reason=reason):
            known = {one.name for one in (before or after).nodes}
            new = [one.name for one in after.nodes if one.name not in known]
            rejoin = f"; its ranks rejoin on {new[0]}" if new else ""
            return f"{node} was given up: {reason}{rejoin}", "error"
        case ev.JobEnded(reason=reason):
            return reason, "error"
        case ev.RunQueued(job=job, by=by):
            return f"{by} asked for another attempt: job {job} will continue the run", "warning"
        case ev.JobEnding(reason=reason):
            return reason, "warning"
        case ev.RunContinued(job=job, nodes=nodes):
            where = ", ".join(name for name, _ in nodes)
            return f"attempt {after.attempt}: job {job} continues the run on {where}", "warning"
        case ev.NodeWarned(node=node, check=check, text=text, fails=fails):
            return f"{node}, {check}: {text}", "error" if fails else "warning"
        case ev.ModulesImported(node=node, modules=modules, earlier=earlier):
            return f"{node} imported {import_words(modules)}" + (", before the launch" if earlier else ""), "info"
        case ev.ScriptImported(modules=modules, preload=preload):
            told = f"rank 0 imported {import_words(modules)}"
            return f"{told}; {preload_words(preload)}" if preload else told, "notice" if preload else "info"
        case ev.StoreOpened(node=node, port=port):
            return f"attempt {after.attempt}: the store listens on {node} port {port}", "info"
        case ev.StoreLost(reason=reason, advice=advice):
            return f"the store was lost: {reason}" + (f"; {advice}" if advice else ""), "error"
        case ev.StoreMissed(ranks=ranks):
            return f"{rank_words(ranks)} can't join without the store", "error"
        case ev.RankSpawned() | ev.RankWaiting() | ev.RankJoined() | ev.RankEnded() | ev.RankLost():
            return _rank_words(event, before, after)
        case ev.RejoinOverdue():
            because = after.phase.then.reason if isinstance(after.phase, Stopping | Clearing) else ""
            return f"the ranks did not form a new group: {because}; all ranks restart", "error"
        case ev.CheckpointsFound(found=found):
            saved = saved_view(after)
            return saved.words if saved else "", "warning" if found.torn or not found.newest else "notice"
        case ev.CheckpointFolderSeen():
            return "", "info"
        case ev.HoldOverdue(seconds=seconds):
            return f"nobody has restarted the run for {seconds:g} s (launch.hold_for); it ends", "warning"
        case ev.HealthNoticed(text=text, kind=kind):
            return text, "info" if kind in RELIEF else "warning"
        case ev.StopRequested(by=by, at_once=at_once):
            return f"{by} asked for the run to stop" + (" at once" if at_once else ""), "warning"
        case ev.RestartRequested(by=by):
            return f"{by} asked for a restart", "warning"
        case ev.KillRequested(by=by, rank=rank, signal=number):
            return f"{by} sent {status_words(-number)} to rank {rank}", "warning"
        case ev.NodeCleared(node=node, abandoned=abandoned):
            return (f"could not kill on {node}: {', '.join(map(str, abandoned))}" if abandoned else ""), "error"
        case ev.NodeClosed():
            return "", "info"


def _rank_words(
    event: ev.RankSpawned | ev.RankWaiting | ev.RankJoined | ev.RankEnded | ev.RankLost,
    before: RunState | None,
    after: RunState,
) -> tuple[str, str]:
    match event:
        case ev.RankSpawned():
            started = isinstance(after.phase, Running) and before is not None and not isinstance(before.phase, Running)
            if started and after.generation:
                return f"generation {after.generation}: rank {event.rank} started", "info"
            return (f"attempt {after.attempt}: all {len(after.ranks)} ranks started" if started else ""), "info"
        case ev.RankWaiting():
            return "", "info"
        case ev.RankJoined(generation=generation, step=at_step):
            count = len(after.ranks)
            if generation == 0 or before is None or not len(before.joined) < count == len(after.joined):
                return "", "info"
            over = f", {over_words(after)}" if over_words(after) else ""
            return f"generation {generation}: all {count} ranks continue from step {at_step or 0}{over}", "info"
        case ev.RankEnded(rank=rank, status=status, reason=reason):
            return _rank_end(rank, status, reason, before, after)
        case ev.RankLost(rank=rank, reason=reason):
            return f"rank {rank} was lost: {reason}", "error"


def _rank_end(rank: int, status: int, reason: str, before: RunState | None, after: RunState) -> tuple[str, str]:
    why = f" ({reason})" if reason else ""
    led = before is not None and not isinstance(before.phase, Stopping | Clearing)
    match after.phase:
        case Stopping(then=Restart(reason=because)) | Clearing(then=Restart(reason=because)) if led:
            return f"rank {rank} failed: {status_words(status)}{why}; {because}", "error"
        case Stopping(then=Outcome()) if led and status != 0:
            return f"rank {rank} failed: {status_words(status)}{why}", "error"
        case Stopping():
            return f"rank {rank} stopped: {status_words(status)}", "info"
    if before is not None and isinstance(before.phase, Stopping):  # the last one
        return f"rank {rank} stopped: {status_words(status)}", "info"
    if status == 0:
        return f"rank {rank} finished", "info"
    return f"rank {rank} failed: {status_words(status)}{why}", "error"
