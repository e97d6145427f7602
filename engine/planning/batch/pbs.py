"""Asks PBS for jobs, and cancels them. Written against the manual of PBS Professional; not tested on a real one."""

import re
import time

import msgspec

from engine.core.errors import CheckError
from engine.core.plan.batch.job import QueuedJob, Submission
from engine.core.plan.batch.pbs import parse_jobs
from engine.gate import LAUNCHED, Permit
from engine.planning.nodes import answer, run_quickly

PATIENCE = 5.0  # seconds for which an answer of qstat is used again: the server answers many users
LIMIT = 10.0  # seconds for qstat to answer

OF_A_JOB = ("PBS_JOB", "PBS_O_", "PBS_NODE", "PBS_TASK", "PBS_MOM", "PBS_ENVIRONMENT", "PBS_QUEUE", "PBS_ARRAY")
"""Beginnings of the names of variables that PBS sets in a job."""

SHOW, CANCEL = "qstat -xf", "qdel"
NUMBER = re.compile(r"[0-9]+(?:\.[A-Za-z0-9_.-]+)?")  # the answer of qsub
_UNKNOWN = 153  # exit status of qstat for a job that the server does not know, or has forgotten
_HINT = "rankdeck runs PBS's commands on this machine: is this a login node?"

_answers: dict[str, tuple[float, QueuedJob | None]] = {}
_silences: list[tuple[float, CheckError]] = []  # when qstat was last silent, and its error: a list of runs waits once


def test(submission: Submission, permit: Permit) -> str:
    """PBS can't be asked beforehand. Returns that, in words."""
    return "PBS judges the job when it is submitted"


def job(number: str, *, since: float = 0.0) -> QueuedJob | None:
    """A job; None: the server does not know it. Every answer is used again for a short time only. Raises CheckError if the server does not answer."""
    asked, found = _answers.get(number, (float("-inf"), None))
    if time.monotonic() - asked > PATIENCE:
        status, said, complaint = _ask(number)
        if status not in (0, _UNKNOWN):
            last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            raise CheckError(f"qstat fails: {last or f'exit status {status}'}", hint=_HINT)
        try:
            found = parse_jobs(said).get(number) if status == 0 else None
        except msgspec.MsgspecError:
            hint = f"try it by hand: qstat -f -F json {number}"
            raise CheckError("the answer of qstat is not JSON", hint=hint) from None
        _answers[number] = (time.monotonic(), found)
    return found


def _ask(number: str) -> tuple[int, bytes, bytes]:
    """The answer of qstat about a job; see `run_quickly`."""
    for at, error in _silences[:]:  # other threads ask too
        if time.monotonic() - at < PATIENCE:
            raise error
    try:
        return run_quickly(["qstat", "-x", "-f", "-F", "json", number], LAUNCHED, hint=_HINT, limit=LIMIT)
    except CheckError as error:
        _silences[:] = [(time.monotonic(), error)]
        raise


def number_of(script: str, before: str) -> str:
    """PBS does not tell which script a job runs."""
    return ""


def check_answers(job: str, *, patient: bool) -> None:
    """Nodes are reached by ssh, whether the server answers or not."""


def cancel(job: str) -> None:
    """Cancels a job. Raises CheckError if PBS does not."""
    answer([CANCEL, job], LAUNCHED, hint=_HINT)
