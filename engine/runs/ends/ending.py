"""Ends a run without its supervisor: its job of a batch system is over, so nothing of the run is left anywhere."""

import contextlib
import os
import time
from collections.abc import Iterator

import msgspec

from engine.core.metrics.series import final_values
from engine.core.plan.plan import LaunchPlan
from engine.core.run import events as ev
from engine.core.run.events import AnyEvent
from engine.core.run.machine import launch, replay
from engine.core.run.state import Ended, RunState, waits_for_job
from engine.runs.ends.proof import find_saved
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_submitted, runtime_files, write_summary
from engine.runs.replay import first_event, measure_journal, read_saved, stored_snapshot

LIMIT = "the time limit of its job"  # who stops a run shortly before that
REQUEUE = "Slurm, which has put its job back into the queue"  # who lets a run wait whose job begins again


def end_run(paths: RunPaths, reason: str, *, by: str = "", again: bool = False) -> None:
    """Writes the end of a run into its journal and its summary, unless they have one. `reason`: why its nodes are gone. `by`: the user who
    wanted it to end; empty: the run has failed. `again`: another job continues it. Raises SupervisorError: a supervisor of this machine
    has the run, or its files can't be read; OSError: they can't be written."""
    with lock_of_lost(paths):
        write_end(paths, reason, by=by, again=again)


@contextlib.contextmanager
def lock_of_lost(paths: RunPaths) -> Iterator[None]:
    """The lock of a run whose job is over, and with it its supervisor on any host. Raises as `end_run`."""
    left = runtime_files(paths)
    paths.supervisor.unlink(missing_ok=True)
    lock = take_lock(paths)
    try:
        for path in left:
            path.unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)


def write_end(paths: RunPaths, reason: str, *, by: str = "", again: bool = False) -> None:
    """Like `end_run`, for a process that holds the lock of the run. Raises SupervisorError: its files can't be read; OSError: they can't be written."""
    plan = read_plan(paths)
    events, size = measure_journal(paths.journal) if paths.journal.exists() else ([], 0)
    state, news = replay(events), list[AnyEvent]()
    if state is None:
        submitted = read_submitted(paths)
        begin = first_event(paths, plan, submitted.at if submitted else time.time())
        state, news = launch(begin)[0], [begin]
    if not isinstance(state.phase, Ended) or (waits_for_job(state) and not again):
        now = time.time()
        news += [found] if (found := _found(paths, plan, state)) is not None else []
        news += [ev.StopRequested(at=now, by=by, at_once=True, again=again)] if by else []
        news.append(ev.JobEnded(at=now, reason=reason))
    _append(paths, size, news)


def _found(paths: RunPaths, plan: LaunchPlan, state: RunState) -> AnyEvent | None:
    """The event about checkpoints of an attempt that was killed with its supervisor; None: they are known, or it had not begun."""
    saved = read_saved(paths)
    if saved is None or saved.attempt != state.attempt or state.saved is not None:
        return None
    return find_saved(paths, plan, state, saved.progress)


def write_queued(paths: RunPaths, job: str, by: str) -> None:
    """Writes into the journal and the summary of a run that a job will continue it, for a process that holds the lock. `by`: who has asked for that.
    Raises as `write_end`."""
    events, size = measure_journal(paths.journal)
    state = replay(events)
    if state is None or not isinstance(state.phase, Ended):
        write_end(paths, f"job {job} continues the run", by=by, again=True)
    elif not waits_for_job(state):
        _append(paths, size, [ev.RunQueued(at=time.time(), job=job, by=by)])


def _append(paths: RunPaths, size: int, news: list[AnyEvent]) -> None:
    """Appends events to a journal after its last whole line, which ends at `size`, and stores the summary."""
    file = os.open(paths.journal, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as journal:
        journal.truncate(size)
        journal.seek(size)
        journal.write(b"".join(msgspec.json.encode(event) + b"\n" for event in news))
        journal.flush()
        os.fsync(file)
    saved = read_saved(paths)
    metrics = final_values(tuple(saved.series)) if saved else None
    write_summary(paths, stored_snapshot(paths).run, metrics)
