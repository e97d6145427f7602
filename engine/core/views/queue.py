"""Jobs in Slurm's queue: what `squeue` tells of them, and what it means."""

from __future__ import annotations

import msgspec

from engine.core.plan.submission import SCHEDULER_NAMES, Scheduler
from engine.core.terminal_text import visible

FORMAT = "%A|%T|%S|%N|%r"
"""For `squeue --format`: number, state, expected or real start, nodes, reason. The reason is last, because it may be any text."""

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD"})
ACTIVE = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})  # fmt: skip
"""States of a job that waits, and of one that has nodes. In all others it has ended."""

_REASONS = {
    "None": ("Slurm has not considered it yet", ""),
    "Priority": ("jobs with a higher priority are before it", "a shorter layout.slurm.time may let it start earlier"),
    "Resources": ("it is next, and waits for nodes", "a shorter layout.slurm.time may let it start earlier"),
    "Dependency": ("it waits for another job", ""),
    "BeginTime": ("its begin time is in the future", ""),
    "JobHeldUser": ("you hold it", "scontrol release {job}"),
    "JobHeldAdmin": ("an administrator holds it", "ask the administrators why"),
    "ReqNodeNotAvail": ("nodes that it needs are down, drained or reserved", "sinfo shows which; request other nodes"),
    "PartitionDown": ("its partition is down", "sinfo shows other partitions"),
    "PartitionInactive": ("its partition starts no jobs now", "sinfo shows other partitions"),
    "PartitionNodeLimit": ("it requests more nodes than the partition allows", "set layout.slurm.nodes or partition"),
    "PartitionTimeLimit": ("it requests more time than the partition allows", "set layout.slurm.time or partition"),
    "BadConstraints": ("no node has what it requests", "correct layout.slurm.options and gres"),
    "NodeDown": ("a node that it needs is down", "sinfo shows it"),
    "Reservation": ("it waits for its reservation", "scontrol show reservation"),
    "Licenses": ("it waits for a licence", ""),
    "InvalidAccount": ("its account is not valid", "set layout.slurm.account; yours: sacctmgr show assoc user=$USER"),
    "InvalidQOS": ("its QOS is not valid", "set another in layout.slurm.options"),
    "BurstBufferResources": ("it waits for a burst buffer", ""),
    "FailedLaunch": ("it could not be started", "ask the administrators why"),
}
"""The meaning of a reason, and what the user can do; empty: nothing."""

_LIMITS = (
    ("QOS", "the limit of its QOS"),
    ("Assoc", "the limit of your account"),
    ("MaxJobs", "the limit of your jobs"),
)


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as squeue shows it, or as qstat does in the words of squeue. `reason`: of PBS a sentence. `start`: when it starts or has started, local time as Slurm writes it; empty: unknown."""

    job: str
    state: str
    start: str = ""
    nodes: str = ""
    reason: str = ""
    scheduler: Scheduler = "slurm"


def parse_queue(text: str) -> dict[str, QueuedJob]:
    """The jobs in the output of `squeue --noheader --format FORMAT`, by number. Lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and fields[0].isdigit():
            job, state, start, nodes, reason = fields
            known = "" if start in ("N/A", "Unknown") else start
            found[job] = QueuedJob(job=job, state=state, start=known, nodes=nodes, reason=reason)
    return found


def queue_words(job: QueuedJob) -> str:
    """A job that waits, in words: `job 12 waits: it is next, and waits for nodes (Resources); expected to start 14:05`."""
    if job.state not in WAITING:
        return f"job {job.job} starts on {job.nodes or 'its nodes'}"
    if job.scheduler == "pbs":
        words = f"job {job.job} waits" + (f": {visible(job.reason[:200])}" if job.reason else "")
        return words + (f"; expected to start {visible(job.start[:40])}" if job.start else "")
    plain = job.reason.split(",")[0].strip("() ")
    limit = next((words for begin, words in _LIMITS if plain.startswith(begin)), "")
    meaning, helps = _REASONS.get(plain, (f"{limit} is reached" if limit else "", ""))
    words = f"job {job.job} waits" + (f": {meaning} ({plain})" if meaning else f" ({plain})" if plain else "")
    if job.start:
        words += f"; expected to start {_moment(job.start)}"
    return words + (f"; {helps.format(job=job.job)}" if helps else "")


def end_words(job: str, found: QueuedJob | None, scheduler: Scheduler = "slurm") -> str:
    """Why a job that has ended took its run with it.

    Args:
        job: its number.
        found: what squeue or qstat still knows; None: nothing.
        scheduler: whose job it is.
    """
    name, more = SCHEDULER_NAMES[scheduler], f"sacct -j {job}" if scheduler == "slurm" else f"qstat -xf {job}"
    words = {
        "CANCELLED": "was cancelled",
        "TIMEOUT": "has reached its time limit",
        "NODE_FAIL": "lost a node",
        "PREEMPTED": "was preempted by another job",
        "DEADLINE": "has reached its deadline",
        "BOOT_FAIL": "could not boot its nodes",
        "OUT_OF_MEMORY": "ran out of memory",
        "FAILED": "has failed",
        "COMPLETED": "has ended",
    }
    state = "" if found is None else found.state
    if state in WAITING:
        return f"{name} has taken the nodes of job {job} away, and put it back into the queue"
    return f"{name}'s job {job} {words.get(state, 'has ended')}" + ("" if state in words else f": {more}")


def _moment(start: str) -> str:
    """`2026-11-24T19:39:37` as people read it: `2026-11-24 19:39`."""
    return start.replace("T", " ")[:16]
