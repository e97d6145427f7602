"""Jobs in a queue: what is told of them; and what Slurm's `squeue` says of its own. `pbs_queue` reads what PBS says."""

from __future__ import annotations

import msgspec

from engine.core.terminal_text import visible

FORMAT = "%A|%T|%S|%N|%r"
"""For `squeue --format`: number, state, expected or real start, nodes, reason. The reason is last, because it may be any text."""

SACCT = "sacct -j"
"""The command that shows a job of Slurm that has ended; its number follows."""

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
    """A job, its state in the words of squeue. `reason`: why it waits, in words. `start`: when it starts or has started, local time as the
    batch system writes it; empty: unknown. `help`: what lets it start earlier."""

    job: str
    state: str
    start: str = ""
    nodes: str = ""
    reason: str = ""
    help: str = ""


def parse_queue(text: str) -> dict[str, QueuedJob]:
    """The jobs in the output of `squeue --noheader --format FORMAT`, by number. Lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and fields[0].isdigit():
            job, state, start, nodes, reason = fields
            known = "" if start in ("N/A", "Unknown") else start.replace("T", " ")[:16]
            words, helps = _reason_words(job, reason)
            found[job] = QueuedJob(job=job, state=state, start=known, nodes=nodes, reason=words, help=helps)
    return found


def _reason_words(job: str, reason: str) -> tuple[str, str]:
    """Why Slurm lets a job wait, and what the user can do; empty: nothing."""
    plain = reason.split(",")[0].strip("() ")
    limit = next((words for begin, words in _LIMITS if plain.startswith(begin)), "")
    meaning, helps = _REASONS.get(plain, (f"{limit} is reached" if limit else "", ""))
    return (f"{meaning} ({plain})" if meaning else plain), helps.format(job=job)


def queue_words(job: QueuedJob) -> str:
    """A job that waits, in words: `job 12 waits: it is next, and waits for nodes (Resources); expected to start 14:05`."""
    if job.state not in WAITING:
        return f"job {job.job} starts on {job.nodes or 'its nodes'}"
    words = f"job {job.job} waits" + (f": {visible(job.reason[:200])}" if job.reason else "")
    words += f"; expected to start {visible(job.start[:40])}" if job.start else ""
    return words + (f"; {job.help}" if job.help else "")


def end_words(job: str, found: QueuedJob | None, *, system: str = "Slurm", show: str = SACCT) -> str:
    """Why a job that has ended took its run with it.

    Args:
        job: its number.
        found: what squeue or qstat still knows; None: nothing.
        system: name of the batch system.
        show: its command that shows a job that has ended; the number follows.
    """
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
        return f"{system} has taken the nodes of job {job} away, and put it back into the queue"
    return f"{system}'s job {job} {words.get(state, 'has ended')}" + ("" if state in words else f": {show} {job}")
