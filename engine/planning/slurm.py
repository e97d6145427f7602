"""Submits runs to Slurm, and asks for their jobs. One `squeue` reports all jobs of the user."""

from __future__ import annotations

import os
import time

from engine.core.errors import CheckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.submission import SCRIPT, Submission, sbatch_argv
from engine.core.terminal_text import visible
from engine.core.views.partitions import FIELDS, Partition, parse_partitions
from engine.core.views.queue import FORMAT, QueuedJob, parse_queue
from engine.planning.nodes import answer
from engine.runs.paths import RunPaths
from engine.runs.record import replace_file

PATIENCE = 5.0
"""Seconds for which an answer of squeue is used again: the controller answers many users."""

_OF_A_JOB = ("SLURM_JOB", "SLURM_NODE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASKS", "SLURM_MEM", "SLURM_CPU",
             "SLURM_GPU", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_SUBMIT", "SLURM_TOPOLOGY",
             "SLURM_PRIO", "SLURM_EXPORT")  # fmt: skip
"""Beginnings of the names of variables that Slurm sets in a job."""

_HINT = "rankdeck runs Slurm's commands on this machine: is this a login node?"


def submit(plan: LaunchPlan, paths: RunPaths, *, after: str = "") -> str:
    """Submits the job of a run. Returns its number.

    Args:
        plan: with a submission.
        paths: of the run, whose plan exists.
        after: the job of the run that must be over first; empty: none.

    Raises:
        CheckError: Slurm refuses the job; the message is Slurm's.
        OSError: the script can't be written.
    """
    assert plan.submission is not None
    replace_file(paths.folder / SCRIPT, plan.submission.script.encode(), mode=0o700)
    said = answer(
        sbatch_argv(plan.submission, str(paths.folder), after=after),
        hint="correct [layout.slurm]; rankdeck plan shows the command",
        # A job hands its variables down, and its own would be wrong for the next one.
        environment={name: value for name, value in os.environ.items() if not name.startswith(_OF_A_JOB)},
    )
    job = said.strip().partition(";")[0]  # another cluster's name may follow
    if not job.isdigit():
        raise CheckError(
            f"sbatch answers {said.strip()[:80]!r}, which is not a job id",
            hint="try the command of rankdeck plan by hand",
        )
    return job


def test(submission: Submission) -> str:
    """Asks Slurm whether it would take a job. Returns when it would start, in Slurm's words.

    Raises:
        CheckError: it would not; the message is Slurm's.
    """
    words = ["sbatch", "--test-only", *submission.options, "--wrap=true"]
    said = answer(words, hint="correct [layout.slurm]; sinfo shows partitions and their limits", whole=True)
    lines = [line.removeprefix("sbatch: ") for line in said.splitlines() if "to start at" in line]
    return visible(" ".join(lines)[:200]) or "Slurm would accept the job"


def partitions() -> list[Partition]:
    """The partitions that this user may see. Raises CheckError if sinfo does not answer."""
    return parse_partitions(answer(["sinfo", "--noheader", "--Node", f"--Format={','.join(FIELDS)}"], hint=_HINT))


def cancel(job: str) -> None:
    """Cancels a job. Raises CheckError if Slurm does not."""
    answer(["scancel", job], hint=_HINT)


class Queue:
    """The jobs of this user."""

    def __init__(self) -> None:
        self._asked = float("-inf")
        self._jobs: dict[str, QueuedJob] = {}

    def jobs(self, patience: float = PATIENCE) -> dict[str, QueuedJob]:
        """Every job that squeue knows, by its number; ended ones for some minutes.

        Args:
            patience: seconds for which an earlier answer is good enough.

        Raises:
            CheckError: squeue does not answer.
        """
        if time.monotonic() - self._asked > patience:
            words = ["squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={FORMAT}"]
            self._jobs = parse_queue(answer(words, hint=_HINT))
            self._asked = time.monotonic()
        return self._jobs


QUEUE = Queue()
"""Shared by everything in this process that asks."""
