"""Jobs of batch systems: the job to submit, and the state of a job in a queue."""

from typing import Literal

import msgspec

from engine.core.tables import read_words
from engine.core.terminal_text import visible

Scheduler = Literal["slurm", "pbs"]  # the batch systems that run jobs

SCHEDULER_NAMES: dict[Scheduler, str] = {"slurm": "Slurm", "pbs": "PBS"}

_SHOW_ENDED: dict[Scheduler, str] = {"slurm": "sacct -j", "pbs": "qstat -xf"}
"""Commands that show a job that has ended; its number follows."""


def words_in(table: str) -> dict[str, str]:
    """A table of this package with two columns."""
    return read_words(__package__, table)


SCRIPT, LOG = "job.sh", "job.log"  # files in the run's folder: the batch script, and its output
TASK_LOG = "job.out"  # the file in which PBS puts the output of tasks when the job has ended
RUN = "RUN"  # stands for the run's folder, which does not exist before the launch


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job: options of sbatch or qsub, and the batch script."""

    options: tuple[str, ...]
    script: str
    scheduler: Scheduler = "slurm"


MAX_REASON = 1000  # characters of a reason, which may name many nodes

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})  # fmt: skip
"""States of a job that waits, and of one that has nodes. In all others it has ended."""


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, its state in the words of squeue. `reason`: why it waits, in words. `start`: when it starts or has started, local time as the
    batch system writes it; empty: unknown. `help`: what lets it start earlier. `by`: the user who has cancelled it; empty: unknown."""

    job: str
    state: str
    start: str = ""
    nodes: str = ""
    reason: str = ""
    help: str = ""
    by: str = ""


def queue_words(job: QueuedJob) -> str:
    """A job that waits, in words: `job 12 waits: it is next, and waits for nodes (Resources); expected to start 14:05`."""
    if job.state == "SUSPENDED":
        return f"job {job.job} is suspended on {job.nodes or 'its nodes'}, and goes on when the batch system resumes it"
    if job.state not in WAITING:
        return f"job {job.job} starts on {job.nodes or 'its nodes'}"
    words = f"job {job.job} waits" + (f": {visible(job.reason[:MAX_REASON])}" if job.reason else "")
    words += f"; expected to start {visible(job.start[:40])}" if job.start else ""
    return words + (f"; {job.help}" if job.help else "")


def with_message(words: str, said: str) -> str:
    """Words about a job. `said`: what the batch system said when it took the job; may be empty."""
    return f"{words}; the batch system said: {said}" if said else words


def end_words(job: str, found: QueuedJob | None, *, scheduler: Scheduler = "slurm") -> str:
    """Why a job that has ended took its run with it; `found`: what squeue, sacct or qstat knows."""
    words = words_in("job_ends")
    state, system = "" if found is None else found.state, SCHEDULER_NAMES[scheduler]
    if state in WAITING:
        return f"{system} has taken the nodes of job {job} away, and put it back into the queue"
    if state not in words:
        return f"{system}'s job {job} has ended: {_SHOW_ENDED[scheduler]} {job}"
    by = f" by {visible(found.by)}" if found is not None and found.by else ""
    return f"{system}'s job {job} {words[state]}{by}"
