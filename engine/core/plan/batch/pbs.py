"""PBS: the job that a profile describes, and what `qstat` tells."""

import re
import shlex
from collections.abc import Sequence

import msgspec

from engine.core.plan.batch.job import LOG, SCRIPT, TASK_LOG, QueuedJob, Submission, words_in
from engine.core.plan.document.places import Places
from engine.core.plan.layout import MAX_RANKS
from engine.core.plan.profile import PbsJob

HERE = ("layout", "pbs")

_BLOCK, _NO_BLOCK = re.compile(r"(?:^|-W\s*|,)block="), "rankdeck wait waits for a run"
"""With it, qsub answers when the job has ended."""


_STATES = {"Q": "PENDING", "W": "PENDING", "T": "PENDING", "H": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "U": "SUSPENDED", "E": "COMPLETING", "B": "RUNNING"}  # fmt: skip
"""States of a job that has not ended, by the letter of PBS: queued, waits, in transit, held, runs, suspended (twice), exits, an array has
begun."""

_ENDS = {0: "COMPLETED", 271: "CANCELLED", -29: "TIMEOUT", -27: "OUT_OF_MEMORY"}
"""How a job has ended, by `Exit_status`: 256 and a signal, or the number of what the mother superior has killed it for."""


# --- the job of a profile ------------------------------------------------------------------------------------------------


def check(job: PbsJob, places: Places) -> None:
    """Raises ProfileError: PBS does not take the job, or rankdeck could not run in it."""
    for key, lowest in (("ncpus", 1), ("ngpus", 0)):
        if (number := getattr(job, key)) is not None:
            places.check_range((*HERE, key), number, lowest, MAX_RANKS)
    seconds = walltime_seconds(job.walltime)
    if job.walltime and seconds is None:
        raise places.error((*HERE, "walltime"), "is not a time", hint='hours, minutes and seconds: "4:00:00"')
    if job.warn and not job.walltime:
        raise places.error((*HERE, "warn"), "needs walltime: PBS does not warn", hint='set walltime = "4:00:00"')
    if seconds is not None and job.warn >= seconds:
        raise places.error((*HERE, "warn"), f"must be less than the walltime, which is {seconds} seconds")
    for word in job.options:
        refused = words_in("refused_by_pbs").get(word[:2], _NO_BLOCK if _BLOCK.search(word) else "")
        if refused:
            raise places.error((*HERE, "options"), f"{word} can't be used", hint=refused)


def submission_of(job: PbsJob, ranks: int, *, name: str, command: Sequence[str]) -> Submission:
    """The job of a profile; the arguments are those of `submission_of` of the package."""
    chunk = [f"select={job.nodes}", f"ncpus={job.ncpus or ranks}", f"mpiprocs={ranks}"]
    chunk += [f"ngpus={job.ngpus}"] if job.ngpus else []
    given = (("-q", job.queue), ("-A", job.account), ("-l", job.walltime and f"walltime={job.walltime}"))
    return Submission(
        options=(
            *("-N", name if name[0].isalpha() else f"r{name}"),
            *("-l", ":".join(chunk), "-l", "place=scatter"),
            *(word for flag, value in given if value for word in (flag, value)),
            *("-r", "n", "-j", "oe"),
            *job.options,
        ),
        script="#!/bin/sh\n# Runs a run of rankdeck, whose folder is the first argument, to its end.\n"
        f'PATH="$PATH:$PBS_O_PATH"\nexec {shlex.join(command)} "$1" >>"$1/{LOG}" 2>&1\n',
        scheduler="pbs",
    )


def walltime_seconds(text: str) -> int | None:
    """A time as `qsub -l walltime=` takes it, `[[hours:]minutes:]seconds`, in seconds; None: it is none."""
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and part.isascii() for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds or None


def argv(submission: Submission, folder: str, after: str) -> list[str]:
    """The command line of qsub; the arguments are those of `submit_argv`."""
    rest = ["-o", f"{folder}/{TASK_LOG}", *(["-W", f"depend=afterany:{after}"] if after else [])]
    return ["qsub", *submission.options, *rest, "--", f"{folder}/{SCRIPT}", folder]


# --- the queue -----------------------------------------------------------------------------------------------------------

_Text = str | int | float  # qstat writes a text that looks like a number as one


class _Estimated(msgspec.Struct):
    start_time: _Text = ""


class _Attributes(msgspec.Struct):
    job_state: str = ""
    comment: _Text = ""
    exec_host: str = ""
    estimated: _Estimated = msgspec.field(default_factory=_Estimated)
    status: int | None = msgspec.field(default=None, name="Exit_status")


class _Answer(msgspec.Struct):
    jobs: dict[str, _Attributes] = msgspec.field(default_factory=dict, name="Jobs")


def parse_jobs(text: bytes) -> dict[str, QueuedJob]:
    """The jobs in the output of `qstat -x -f -F json`, by number. Bytes that are not UTF-8 are replaced. Raises msgspec.MsgspecError if the output has another form."""
    found = msgspec.json.decode(text.decode(errors="replace"), type=_Answer, strict=False).jobs
    return {number: _job(number, attributes) for number, attributes in found.items()}


def _job(number: str, found: _Attributes) -> QueuedJob:
    held = "it is held: qrls releases it; " if found.job_state == "H" else ""
    hosts = ",".join(dict.fromkeys(part.partition("/")[0] for part in found.exec_host.split("+")))
    state = _STATES.get(found.job_state, "")
    if not state:
        state = "ENDED" if found.status is None else _ENDS.get(found.status, "FAILED")
    return QueuedJob(
        job=number,
        state=state,
        start=str(found.estimated.start_time),
        nodes=hosts,
        reason=f"{held}{found.comment}".removesuffix("; "),
    )
