"""Checks of the job that a profile describes in `[layout.slurm]` or `[layout.pbs]`."""

from __future__ import annotations

import re

from engine.core.plan.key_places import Places
from engine.core.plan.layout import MAX_NODES, MAX_RANKS
from engine.core.plan.profile import PbsJob, SlurmJob
from engine.core.plan.submission import walltime_seconds

_SLURM_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,9})?\Z")
"""A job or a task of a job array. `squeue` can't mistake it for an option."""

_NOT_OF_SBATCH = {
    "array": "rankdeck submits one job, not a job array",
    "wrap": "rankdeck writes the script",
    "nodes": "set layout.slurm.nodes",
    "parsable": "rankdeck sets it",
    "test-only": "rankdeck check does that",
    "wait": "rankdeck wait waits for a run",
    "requeue": "rankdeck sets it",
    "signal": "set layout.slurm.warn",
    "no-requeue": "rankdeck sets it",
}
"""Options that would change what rankdeck submits, and what to do instead."""

MAX_WARN = 65_535
"""The longest time that Slurm takes in `--signal`, in seconds."""

_SHORT_OPTIONS = {"-a": "array", "-N": "nodes", "-W": "wait"}


_NOT_OF_QSUB = {
    "-J": "rankdeck submits one job, not a job array",
    "-I": 'start rankdeck inside an interactive job: layout.pbs = "current"',
    "-o": "rankdeck sets it",
    "-j": "rankdeck sets it",
    "-r": "rankdeck sets it",
    "-z": "rankdeck reads the job's number",
    "--": "rankdeck writes the script",
}


_BLOCK, _NO_BLOCK = re.compile(r"(?:^|-W\s*|,)block="), "rankdeck wait waits for a run"
"""With it, qsub answers when the job has ended."""


def check_job(job: SlurmJob | PbsJob, places: Places) -> None:
    """Checks a job that a profile describes. Raises ProfileError: no batch system takes it, or rankdeck could not run in it."""
    is_slurm = isinstance(job, SlurmJob)
    here = ("layout", "slurm" if is_slurm else "pbs")
    if not 1 <= job.nodes <= MAX_NODES:
        raise places.error((*here, "nodes"), f"must be 1 to {MAX_NODES}, not {job.nodes}")
    if job.ranks_per_node is not None and not 1 <= job.ranks_per_node <= MAX_RANKS:
        raise places.error((*here, "ranks_per_node"), f"must be 1 to {MAX_RANKS}, not {job.ranks_per_node}")
    if not 0 <= job.warn <= MAX_WARN:
        raise places.error((*here, "warn"), f"must be 0 to {MAX_WARN} seconds, not {job.warn}")
    if job.on_limit == "requeue" and not job.warn:
        raise places.error(
            (*here, "on_limit"), "needs warn: ranks must stop before their job is ended", hint="set warn = 300"
        )
    texts = ("partition", "time", "gres", "account") if is_slurm else ("queue", "walltime", "account")
    for key in texts:
        if not getattr(job, key).isprintable():
            raise places.error((*here, key), "contains a control character")
    for word in job.options:
        if word == ":" or not word.isprintable():
            raise places.error((*here, "options"), f"{word!r} is not an option of one job")
    if isinstance(job, SlurmJob):
        _check_slurm(job, places)
    else:
        _check_pbs(job, places)


def _check_slurm(job: SlurmJob, places: Places) -> None:
    here = ("layout", "slurm")
    if not 0 <= job.spares <= MAX_NODES - job.nodes:
        raise places.error((*here, "spares"), f"must be 0 to {MAX_NODES - job.nodes}, not {job.spares}")
    for word in job.options:
        name = _SHORT_OPTIONS.get(word[:2], "") or word.partition("=")[0].removeprefix("--")
        if word.startswith("-") and name in _NOT_OF_SBATCH:
            raise places.error((*here, "options"), f"{word} can't be used", hint=_NOT_OF_SBATCH[name])


def _check_pbs(job: PbsJob, places: Places) -> None:
    here = ("layout", "pbs")
    for key, lowest in (("ncpus", 1), ("ngpus", 0)):
        number = getattr(job, key)
        if number is not None and not lowest <= number <= MAX_RANKS:
            raise places.error((*here, key), f"must be {lowest} to {MAX_RANKS}, not {number}")
    seconds = walltime_seconds(job.walltime)
    if job.walltime and seconds is None:
        raise places.error((*here, "walltime"), "is not a time", hint='hours, minutes and seconds: "4:00:00"')
    if job.warn and not job.walltime:
        raise places.error((*here, "warn"), "needs walltime: PBS does not warn", hint='set walltime = "4:00:00"')
    if seconds is not None and job.warn >= seconds:
        raise places.error((*here, "warn"), f"must be less than the walltime, which is {seconds} seconds")
    for word in job.options:
        refused = _NOT_OF_QSUB.get(word[:2], _NO_BLOCK if _BLOCK.search(word) else "")
        if refused:
            raise places.error((*here, "options"), f"{word} can't be used", hint=refused)


def is_slurm_job(job: int | str) -> bool:
    """Whether a value of `layout.slurm` names a job."""
    if isinstance(job, int):
        return 0 < job < 10**10
    return job == "current" or _SLURM_JOB.match(job) is not None
