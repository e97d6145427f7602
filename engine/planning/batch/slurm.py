"""Asks Slurm for jobs, and cancels them. One `squeue` reports all jobs of the user."""

import contextlib
import os
import pwd
import re
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from engine.core.errors import CheckError, NoAnswerError, SilentSlurmError
from engine.core.plan.batch.job import ACTIVE, WAITING, QueuedJob, Submission, queue_words
from engine.core.plan.batch.slurm import FIELDS, FORMAT, Partition, parse_partitions, parse_queue
from engine.gate import LAUNCHED, Permit
from engine.linux.files import replace_file
from engine.planning.batch.slurm_conf import cluster_name
from engine.planning.nodes import DEADLINE, answer, run_quickly, spoken
from engine.runs.lock import alone
from engine.runs.paths import state_folder
from engine.runs.record import find_value

PATIENCE, LONGEST = 20.0, 60.0
"""Seconds for which an answer of squeue is used again, after a change in the queue and at most: the controller answers many users, and each squeue
asks it twice."""

PING_LIMIT = 1.0  # seconds for a controller to answer before nodes are reached through it

OF_A_JOB = ("SLURM_JOB", "SLURM_NODE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASKS", "SLURM_MEM", "SLURM_CPU",
             "SLURM_GPU", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_SUBMIT", "SLURM_TOPOLOGY",
             "SLURM_PRIO", "SLURM_EXPORT")  # fmt: skip
"""Beginnings of the names of variables that Slurm sets in a job."""

SHOW, CANCEL = "scontrol show job", "scancel"
NUMBER = re.compile(r"[0-9]+")  # the answer of sbatch
_SILENT, _PING = "Slurm's controller does not answer", "scontrol ping tells when it is back"

_HINT = "rankdeck runs Slurm's commands on this machine: is this a login node?"


def test(submission: Submission, permit: Permit) -> str:
    """Asks Slurm whether it would take a job. Returns when it would start, in Slurm's words. Raises CheckError: it would not; the message
    is Slurm's. Raises NotTrustedError: Slurm may not be asked."""
    words = ["sbatch", "--test-only", *submission.options, "--wrap=true"]
    said = answer(words, permit, hint="correct [layout.slurm]; sinfo shows partitions and their limits", whole=True)
    lines = said.splitlines()
    starts = spoken("\n".join(line for line in lines if "to start at" in line), "sbatch")
    told = spoken("\n".join(line for line in lines if "to start at" not in line), "sbatch")
    return "; ".join(filter(None, [starts or "Slurm would accept the job", told]))


def partitions() -> list[Partition]:
    """The partitions that this user may see. Raises CheckError if sinfo does not answer."""
    words = ["sinfo", "--noheader", "--Node", f"--Format={','.join(FIELDS)}"]
    return parse_partitions(answer(words, LAUNCHED, hint=_HINT))


def job(number: str, *, since: float = 0.0) -> QueuedJob | None:
    """A job; None: squeue does not know it. `since`: see `queue`, whose errors this raises. If Slurm is silent, the error says what was known of the
    job."""
    try:
        return queue(since).get(number)
    except SilentSlurmError as error:
        raise SilentSlurmError(silence_words(number, error.message), hint=_PING) from None


def number_of(script: str, before: str) -> str:
    """The number of the job that runs a script; empty: squeue does not know it, or does not answer. `before`: an earlier job that runs it; numbers grow."""
    words = ["squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", "--format=%A|%o"]
    with contextlib.suppress(CheckError):
        for line in answer(words, LAUNCHED, hint=_HINT).splitlines():
            number, _, command = line.partition("|")
            is_ours = command == script or command.startswith(f"{script} ")
            if is_ours and int(number) > int(before or 0):
                return number
    return ""


def check_answers(job: str, *, patient: bool) -> None:
    """Nodes are reached by steps, for which the controller must answer."""
    if controller() in (("down",) if patient else ("down", "silent")):
        raise SilentSlurmError(silence_words(job), hint=_PING)


def cancel(job: str) -> None:
    """Cancels a job. Raises CheckError if Slurm does not."""
    answer([CANCEL, job], LAUNCHED, hint=_HINT)
    forget_queue()


def last_end(job: str) -> QueuedJob | None:
    """How a job has ended, the last time if Slurm has started it again; None: unknown, because the site may keep no accounts."""
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State", f"--jobs={job}"]
    try:
        states = [line.split() for line in answer(words, LAUNCHED, hint=_HINT).splitlines() if line.strip()]
    except CheckError:
        return None
    ended = next((state for state in reversed(states) if state[0] not in WAITING | ACTIVE), None)
    if ended is None:
        return None
    *_, by = ended  # `CANCELLED by 1000`
    with contextlib.suppress(KeyError, OverflowError):
        by = pwd.getpwuid(int(by)).pw_name if by.isdecimal() else ""
    return QueuedJob(job=job, state=ended[0], by=by)


Controller = Literal["up", "down", "silent"]


def controller() -> Controller:
    """Whether a controller of Slurm answers. `down`: it is known that none does; `silent`: none has in time. Where there is no scontrol,
    it counts as `up`, and the next command tells more."""
    if shutil.which("scontrol") is None:
        return "up"
    try:
        _, said, _ = run_quickly(["scontrol", "ping"], LAUNCHED, hint=_HINT, limit=PING_LIMIT)
    except CheckError:
        return "silent"
    return "up" if b" is UP" in said else "down"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`squeue-CLUSTER.json`: what squeue said last to any command of this user, when, and since when it says the same; and when it has last
    failed, and how. Times are in seconds since the epoch."""

    at: float = 0.0
    since: float = 0.0
    jobs: dict[str, QueuedJob] = {}
    failed: float = 0.0
    failure: str = ""


def silence_words(job: str, failure: str = _SILENT) -> str:
    """That no controller answers, with what is known of a job from before."""
    asked = find_value(_asked_file(), Asked)
    if asked is None or not asked.at:
        return failure
    words = f"{failure}; it was last asked at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(asked.at))}"
    known = asked.jobs.get(job)
    return words + (f", when {queue_words(known)}" if known is not None and known.state in WAITING else "")


def forget_queue() -> None:
    """Lets the next command ask Slurm: this one has changed the queue."""
    _asked_file().unlink(missing_ok=True)


def _asked_file() -> Path:
    return state_folder() / f"squeue-{cluster_name()}.json"


def queue(since: float = 0.0) -> dict[str, QueuedJob]:
    """Every job that squeue knows, by its number; ended ones for some minutes. All commands of a user share the answers on all login nodes of a
    cluster, and the silence of a controller: for `PATIENCE`, and for longer while nothing changes, if they are of after `since`, in seconds since the
    epoch. Raises SilentSlurmError: squeue gets no answer; CheckError: there is no squeue."""
    file = _asked_file()
    with alone(file.with_suffix(".lock"), DEADLINE) as is_alone:  # the others use this answer
        known, now = find_value(file, Asked) or Asked(), time.time()
        calm = (known.at - known.since) / 6 if known.at >= since else 0.0
        if abs(now - known.at) < min(LONGEST, max(PATIENCE, calm)):
            return known.jobs
        if not is_alone or abs(now - known.failed) < PATIENCE:
            raise SilentSlurmError(known.failure or _SILENT, hint=_PING)
        asked = _ask(known)
        with contextlib.suppress(OSError):
            replace_file(file, msgspec.json.encode(asked))
        if asked.failed:
            raise SilentSlurmError(asked.failure, hint=_PING)
        return asked.jobs


def _ask(known: Asked) -> Asked:
    """The answer of squeue, or its failure, after what is known. `--local`: not that of a federation, which would take a third question."""
    words = ["squeue", "--local", "--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={FORMAT}"]
    try:
        status, said, complaint = run_quickly(words, LAUNCHED, hint=_HINT, limit=DEADLINE)
    except NoAnswerError:
        return msgspec.structs.replace(known, failed=time.time(), failure=_SILENT)
    now = time.time()
    if status != 0:
        told = spoken(complaint.decode(errors="replace").strip().rpartition("\n")[2], "squeue")
        return msgspec.structs.replace(known, failed=now, failure=f"squeue fails: {told or f'exit status {status}'}")
    jobs = parse_queue(said.decode(errors="replace"))
    return Asked(at=now, since=known.since if known.at and known.jobs == jobs else now, jobs=jobs)
