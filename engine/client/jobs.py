"""Runs that were submitted as jobs: whether they wait, where they are, and what ended them.

`engine.runs.replay` and `engine.runs.ends.ending` are imported only where there is a job: they
import most of the core, which would slow every command down.
"""

import contextlib
import time

import msgspec

from engine.core.errors import CheckError, SilentSlurmError, SupervisorError, SuspendedJobError
from engine.core.plan.batch.job import (
    ACTIVE,
    LOG,
    SCHEDULER_NAMES,
    WAITING,
    QueuedJob,
    end_words,
    queue_words,
    with_message,
)
from engine.core.plan.plan import LaunchPlan
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import JobView, RunSummary, Snapshot
from engine.linux.files import replace_file
from engine.planning.batch import BATCH_SYSTEMS, submit
from engine.planning.batch.slurm import LONGEST, forget_queue, last_end
from engine.runs.listing import all_runs, summaries, summarise
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import (
    JobPlace,
    Submitted,
    is_in_job,
    place_elsewhere,
    read_plan,
    read_submitted,
    replace_plan,
)

NEW_JOB = 2 * LONGEST
"""Seconds after its submission in which a job may be missing in the answer of squeue, because an older answer is used again."""

FRESH, SILENT = 60.0, 20.0
"""Seconds after its last summary in which the supervisor of a run in a job counts as alive, so that a list does not ask Slurm for the job, and after
which one that writes every 5 seconds may be suspended, so that a request asks."""


def runs_and_jobs() -> list[RunSummary]:
    """The lines of `rankdeck ps`, with what Slurm says of runs that wait for its jobs, or whose supervisor has been silent for long. Asks Slurm only if there are any."""
    looked = [summary if summary.state in ENDED_WORDS else _with_job(summary) for summary in summaries()]
    return sorted(looked, key=lambda summary: summary.state in ENDED_WORDS)


def _with_job(summary: RunSummary) -> RunSummary:
    paths = RunPaths(runs_folder() / summary.run)
    if (submitted := read_submitted(paths)) is None or _goes_on(paths, summary):
        return summary
    from engine.runs.replay import is_queued

    words = look(paths, submitted)
    if summary.state == "queued" and is_queued(paths):
        return msgspec.structs.replace(summary, reason=words)
    summary = summarise(paths)
    if summary.state not in ENDED_WORDS and (job := suspended_job(paths, submitted)) is not None:
        return msgspec.structs.replace(summary, job=_suspended(summary.job, job))
    return summary


def _suspended(shown: JobView | None, job: QueuedJob) -> JobView:
    return msgspec.structs.replace(shown or JobView(job=job.job), suspended=True)


def _heard_at(paths: RunPaths) -> float:
    """When the supervisor of a run has written its last summary, in seconds since the epoch; 0: it has written none."""
    try:
        return paths.summary.stat().st_mtime
    except OSError:
        return 0.0


def suspended_job(paths: RunPaths, submitted: Submitted, *, asks: bool = False) -> QueuedJob | None:
    """The job of a run if it is suspended, and with it the supervisor. None: it is not, or that is not known. `asks`: whether the batch system is asked
    also while the supervisor writes its summary. A command in the job asks nobody: it would be suspended too."""
    now, heard, job = time.time(), _heard_at(paths), None
    if not is_in_job(submitted) and (asks or abs(now - heard) > SILENT):
        system = BATCH_SYSTEMS[submitted.scheduler]
        with contextlib.suppress(CheckError, SilentSlurmError):
            job = system.job(submitted.job, since=now if asks else heard)
            if asks and job is not None and job.state == "SUSPENDED":
                forget_queue()  # it may have been resumed since
                job = system.job(submitted.job)
    return job if job is not None and job.state == "SUSPENDED" else None


def refuse_suspended(paths: RunPaths, submitted: Submitted) -> None:
    """Raises SuspendedJobError: the supervisor of a run can't answer, because its job is suspended."""
    if (job := suspended_job(paths, submitted, asks=True)) is not None:
        hint = f"{BATCH_SYSTEMS[submitted.scheduler].CANCEL} {job.job} ends the run with its job"
        raise SuspendedJobError(f"the supervisor of {paths.run} can't answer: {queue_words(job)}", hint=hint)


def suspended_snapshot(paths: RunPaths, *, asks: bool) -> Snapshot | None:
    """A run whose job is suspended, from its files; None: its job is not, or it has none. `asks`: see `suspended_job`."""
    from engine.runs.replay import stored_snapshot

    submitted = read_submitted(paths)
    if submitted is None or (job := suspended_job(paths, submitted, asks=asks)) is None:
        return None
    snapshot = stored_snapshot(paths)
    if snapshot.run.state in (*ENDED_WORDS, "queued"):
        return None
    used = snapshot.run.goodput
    used = msgspec.structs.replace(used, doing="waiting") if used is not None else None
    view = {"doing": queue_words(job), "job": _suspended(snapshot.run.job, job), "goodput": used}
    run = msgspec.structs.replace(snapshot.run, **view)
    return msgspec.structs.replace(snapshot, run=run)


def seen_snapshot(paths: RunPaths) -> Snapshot | None:
    """A run in a job on another host, as its supervisor has last written it. The batch system is asked only if that was long ago. None: the
    run is elsewhere, or the supervisor has written nothing yet."""
    submitted = read_submitted(paths)
    if submitted is None or place_elsewhere(paths) is None:
        return None
    from engine.runs.replay import stored_snapshot

    if (suspended := suspended_snapshot(paths, asks=False)) is not None:
        return suspended
    words = look(paths, submitted) if time.time() - _heard_at(paths) > SILENT else ""
    snapshot = stored_snapshot(paths)
    if snapshot.run.state in ENDED_WORDS or snapshot.run.as_of is None:
        return None
    return msgspec.structs.replace(
        snapshot, run=msgspec.structs.replace(snapshot.run, doing=words or snapshot.run.doing)
    )


def _goes_on(paths: RunPaths, summary: RunSummary) -> bool:
    """Whether the supervisor of a run has just written a summary that is not its last one, which has metrics."""
    is_fresh = abs(time.time() - _heard_at(paths)) < FRESH
    return is_fresh and summary.state != "queued" and summary.metrics is None


def look(paths: RunPaths, submitted: Submitted) -> str:
    """Asks Slurm for the job of a run, and ends the run if its job is over. Returns how its job is, in words."""
    from engine.runs.ends.ending import LIMIT, REQUEUE, end_run
    from engine.runs.replay import has_begun, waits_again

    number, system = awaited_job(paths, submitted), BATCH_SYSTEMS[submitted.scheduler]
    try:
        job = system.job(number)
    except (CheckError, SilentSlurmError) as error:
        return error.message
    if job is not None and job.state in WAITING | ACTIVE:
        if job.state in WAITING and has_begun(paths) and time.time() - paths.journal.stat().st_mtime > LONGEST:
            # It begins again. An answer of squeue from before the last event would tell of the wait before that.
            with contextlib.suppress(SupervisorError, OSError):
                if not waits_again(paths):
                    end_run(paths, queue_words(job), by=REQUEUE, again=True)
        return with_message(queue_words(job), submitted.said)
    if job is None and time.time() - submitted.at < NEW_JOB:
        return f"job {number} was submitted"
    known = last_end(number) if submitted.scheduler == "slurm" and (job is None or job.state == "CANCELLED") else None
    reason = end_words(number, known or job, scheduler=submitted.scheduler)
    if job is not None and job.state == "FAILED" and not (paths.folder / LOG).exists():  # its first output creates it
        reason += f": its first node does not see {paths.folder}; set RANKDECK_HOME to a folder that login and compute nodes share"
    if read_submitted(paths) != submitted:  # it goes on in its next job since
        return reason
    again = bool(submitted.next) and number == submitted.job
    with contextlib.suppress(SupervisorError, OSError):  # another command ends it at this moment
        end_run(paths, reason, by=LIMIT if again else "", again=again)
    return reason


def submit_again(paths: RunPaths, submitted: Submitted, by: str) -> str:
    """Submits the job that continues a run which has ended, as its next attempt. Returns that in words. `by`: who asks for it. Raises
    SupervisorError: the run has a supervisor, or its files can't be read; CheckError: the batch system refuses the job; OSError: the files
    of the run can't be written."""
    from engine.runs.ends.ending import lock_of_lost, write_queued

    with lock_of_lost(paths):
        number, said = submit(read_plan(paths), paths)
        write_queued(paths, number, by)  # first: the job waits until it is named in `job.json`
        known = msgspec.structs.replace(submitted, at=time.time(), next=number, fruitless=0, said=said)
        replace_file(paths.job, msgspec.json.encode(known))
    words = f"{SCHEDULER_NAMES[submitted.scheduler]}'s job {number} continues the run as its next attempt"
    return with_message(words, said)


def continue_requeued(place: JobPlace, profile: bytes, plan: LaunchPlan) -> RunPaths | None:
    """Lets the run go on that this job has launched before Slurm has put it back into the queue. `profile`: text of the launched profile,
    with its arguments. `plan`: on the nodes that the job has now. Returns the run, which waits for a supervisor; None: there is none, or
    it has succeeded, or this job has continued it already."""
    from engine.runs.ends.ending import REQUEUE, lock_of_lost, write_queued

    for paths in reversed(all_runs()):
        known = read_submitted(paths)
        if known is None or not known.by_user or known.job != place.job or known.restarts >= place.restarts:
            continue
        before = read_plan(paths)
        is_same = (before.program, before.workdir, before.world_size) == (plan.program, plan.workdir, plan.world_size)
        if is_same and paths.profile.read_bytes() == profile and summarise(paths).state != "succeeded":
            with lock_of_lost(paths):
                write_queued(paths, place.job, REQUEUE)
            replace_plan(paths, plan)
            return paths
    return None


def awaited_job(paths: RunPaths, submitted: Submitted) -> str:
    """The number of the job that a run is in, or waits for. Raises SupervisorError if its journal can't be read."""
    from engine.runs.replay import waits_again

    return submitted.next if submitted.next and waits_again(paths) else submitted.job


def queued_snapshot(paths: RunPaths, submitted: Submitted) -> Snapshot:
    """A run whose job waits, and why it does. It may have begun or ended since."""
    from engine.runs.replay import stored_snapshot

    words = look(paths, submitted)
    snapshot = stored_snapshot(paths)
    if snapshot.run.state != "queued":
        return snapshot
    return msgspec.structs.replace(snapshot, run=msgspec.structs.replace(snapshot.run, doing=words))
