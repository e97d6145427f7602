"""The job that a profile asks for: the batch script and the words of `sbatch` or `qsub`, as pure data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec

from engine.core.plan.profile import PbsJob, SlurmJob

Scheduler = Literal["slurm", "pbs"]
"""Who runs jobs."""

SCHEDULER_NAMES: dict[Scheduler, str] = {"slurm": "Slurm", "pbs": "PBS"}

SCRIPT, LOG = "job.sh", "job.log"
"""Files in the run's folder: the batch script, and what it prints."""

TASK_LOG = "job.out"
"""The file in which PBS puts the output of tasks when the job has ended."""

RUN = "RUN"
"""Stands for the run's folder, which does not exist before the launch."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job: options of sbatch or qsub, and the batch script."""

    options: tuple[str, ...]
    script: str
    scheduler: Scheduler = "slurm"


def slurm_submission(job: SlurmJob, ranks: int, *, name: str, command: Sequence[str]) -> Submission:
    """The job of a profile.

    Args:
        job: what the profile asks for. Its own options come last, and so override the others.
        ranks: on each node; each gets a core at least.
        name: of the profile.
        command: the words of rankdeck's command on the first node; the run's folder follows them.
    """
    given = {"partition": job.partition, "time": job.time, "gres": job.gres, "account": job.account}
    return Submission(
        options=(
            f"--job-name={name}",
            f"--nodes={job.nodes + job.spares}",
            f"--ntasks-per-node={ranks}",
            *(f"--{key}={value}" for key, value in given.items() if value),
            "--no-requeue",
            *(["--no-kill"] if job.spares else []),
            *([f"--signal=B:USR1@{job.warn}"] if job.warn else []),
            *job.options,
        ),
        script=f'#!/bin/sh\n# Runs a run of rankdeck, whose folder is the first argument, to its end.\nexec {shlex.join(command)} "$1"\n',
    )


def pbs_submission(job: PbsJob, ranks: int, *, name: str, command: Sequence[str]) -> Submission:
    """The job of a profile; the arguments are those of `slurm_submission`."""
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


def submit_argv(submission: Submission, folder: str = RUN, *, after: str = "") -> list[str]:
    """The command line that submits a job.

    Args:
        submission: the job.
        folder: of the run, which has the script.
        after: the job that must be over first; empty: none.
    """
    if submission.scheduler == "pbs":
        rest = ["-o", f"{folder}/{TASK_LOG}", *(["-W", f"depend=afterany:{after}"] if after else [])]
        return ["qsub", *submission.options, *rest, "--", f"{folder}/{SCRIPT}", folder]
    where = [f"--output={_pattern(folder)}/{LOG}", "--open-mode=append"]
    where += [f"--dependency=afterany:{after}"] if after else []
    return ["sbatch", "--parsable", *submission.options, *where, f"{folder}/{SCRIPT}", folder]


def _pattern(folder: str) -> str:
    """A folder in a name of `--output`, where `%` begins a pattern and a backslash switches patterns off."""
    return folder.replace("%", "%%")
