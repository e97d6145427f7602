"""The job that a profile asks for: the batch script and the words of `sbatch`, as pure data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from engine.core.plan.profile import SlurmJob

SCRIPT, LOG = "job.sh", "job.log"
"""Files in the run's folder: the batch script, and what it prints."""

RUN = "RUN"
"""Stands for the run's folder, which does not exist before the launch."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job for Slurm: options of sbatch, and the batch script."""

    options: tuple[str, ...]
    script: str


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


def sbatch_argv(submission: Submission, folder: str = RUN, *, after: str = "") -> list[str]:
    """The command line that submits a job.

    Args:
        submission: the job.
        folder: of the run, which has the script.
        after: the job that must be over first; empty: none.
    """
    where = [f"--output={_pattern(folder)}/{LOG}", "--open-mode=append"]
    where += [f"--dependency=afterany:{after}"] if after else []
    return ["sbatch", "--parsable", *submission.options, *where, f"{folder}/{SCRIPT}", folder]


def _pattern(folder: str) -> str:
    """A folder in a name of `--output`, where `%` begins a pattern and a backslash switches patterns off."""
    return folder.replace("%", "%%")
