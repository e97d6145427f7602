"""Submits runs as jobs. Each batch system has a module of its own."""

import os
import re
from typing import NamedTuple, Protocol

from engine.core.errors import CheckError, NoAnswerError
from engine.core.plan.batch import submit_argv
from engine.core.plan.batch.job import SCRIPT, QueuedJob, Scheduler, Submission
from engine.core.plan.plan import LaunchPlan
from engine.gate import LAUNCHED, Permit
from engine.linux.files import replace_file
from engine.planning.batch import pbs, slurm
from engine.planning.nodes import answer, spoken
from engine.runs.paths import RunPaths
from engine.runs.record import read_submitted


class BatchSystem(Protocol):
    """The interface of a batch system's module."""

    @property
    def OF_A_JOB(self) -> tuple[str, ...]:
        """Beginnings of the names of variables that it sets in a job."""

    @property
    def NUMBER(self) -> re.Pattern[str]:
        """The job number that the submitting command prints."""

    @property
    def SHOW(self) -> str:
        """The command that shows a job that has not ended; its number follows."""

    @property
    def CANCEL(self) -> str:
        """The command that ends a job; its number follows."""

    def test(self, submission: Submission, permit: Permit) -> str:
        """Asks whether a job would be taken. Returns what is said. Raises CheckError: it would not, or may not be asked."""

    def job(self, number: str, *, since: float = 0.0) -> QueuedJob | None:
        """A job; None: it is not known. `since`: an answer from before is used again only for a short time. Raises CheckError or SilentSlurmError if
        nobody answers."""

    def number_of(self, script: str, before: str) -> str:
        """The number of the job that runs a script; empty: unknown. `before`: an earlier job that runs it, or empty; it does not count."""

    def check_answers(self, job: str, *, patient: bool) -> None:
        """Raises SilentSlurmError if nothing of a job can be reached because its batch system does not answer. `patient`: a connection may
        wait for a controller that is only slow."""

    def cancel(self, job: str) -> None:
        """Cancels a job. Raises CheckError if that fails."""


BATCH_SYSTEMS: dict[Scheduler, BatchSystem] = {"slurm": slurm, "pbs": pbs}


class Taken(NamedTuple):
    """A job that a batch system has taken: its number, and what the batch system has said, such as a message of `job_submit.lua`."""

    job: str
    said: str


def submit(plan: LaunchPlan, paths: RunPaths, *, after: str = "") -> Taken:
    """Submits the job of a run. `after`: the job that must be over first; empty: none. Raises CheckError: the batch system refuses
    the job; the message is its own; NoAnswerError: it does not answer, and the job is not found; OSError: the script can't be written."""
    assert plan.submission is not None
    name = plan.submission.scheduler
    system = BATCH_SYSTEMS[name]
    replace_file(paths.folder / SCRIPT, plan.submission.script.encode(), mode=0o700)
    words = submit_argv(plan.submission, str(paths.folder), after=after)
    try:
        text = answer(
            words,
            LAUNCHED,
            hint=f"correct [layout.{name}]; rankdeck plan shows the command",
            whole=True,
            # A job hands its variables down, and its own would be wrong for the next one.
            environment={key: value for key, value in os.environ.items() if not key.startswith(system.OF_A_JOB)},
        )
    except NoAnswerError as error:
        known = read_submitted(paths)
        before = "" if known is None else known.next or known.job
        if not (text := system.number_of(str(paths.folder / SCRIPT), before)):
            hint = f"a job {plan.name} may be in the queue all the same, and would end at once: cancel it"
            raise NoAnswerError(error.message, hint=hint) from None
    slurm.forget_queue()
    said, _, rest = text.strip().partition("\n")
    job = said.partition(";")[0]  # another cluster's name may follow
    if not system.NUMBER.fullmatch(job):
        hint = "try the command of rankdeck plan by hand"
        raise CheckError(f"{words[0]} answers {said.strip()[:80]!r}, which is not a job id", hint=hint)
    return Taken(job, spoken(rest, words[0]))
