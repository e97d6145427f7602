"""Batch systems as profiles and plans know them: one module for each. `engine.planning.batch` asks them."""

from collections.abc import Sequence

from engine.core.plan.batch import pbs, slurm
from engine.core.plan.batch.job import RUN, Submission
from engine.core.plan.document.places import Places
from engine.core.plan.layout import MAX_NODES, MAX_RANKS
from engine.core.plan.profile import PbsJob, SlurmJob

MAX_WARN = 65_535  # the longest time that Slurm takes in `--signal`, in seconds


def check_job(job: SlurmJob | PbsJob, places: Places) -> None:
    """Checks a job that a profile describes. Raises ProfileError: no batch system takes it, or rankdeck could not run in it."""
    here = slurm.HERE if isinstance(job, SlurmJob) else pbs.HERE
    places.check_range((*here, "nodes"), job.nodes, 1, MAX_NODES)
    if job.ranks_per_node is not None:
        places.check_range((*here, "ranks_per_node"), job.ranks_per_node, 1, MAX_RANKS)
    places.check_range((*here, "warn"), job.warn, 0, MAX_WARN, " seconds")
    if job.on_limit == "requeue" and not job.warn:
        hint = "set warn = 300"
        raise places.error((*here, "on_limit"), "needs warn: ranks must stop before their job is ended", hint=hint)
    for key in job.__struct_fields__:
        if isinstance(text := getattr(job, key), str) and not text.isprintable():
            raise places.error((*here, key), "contains a control character")
    for word in job.options:
        if word == ":" or not word.isprintable():
            raise places.error((*here, "options"), f"{word!r} is not an option of one job")
    if isinstance(job, SlurmJob):
        slurm.check(job, places)
    else:
        pbs.check(job, places)


def submission_of(job: SlurmJob | PbsJob, ranks: int, *, name: str, command: Sequence[str]) -> Submission:
    """The job of a profile. `job`: what the profile asks for. Its own options come last, and so override the others. `ranks`: on each
    node; each gets a core at least. `command`: the words of rankdeck's command on the first node; the run's folder follows them."""
    if isinstance(job, SlurmJob):
        return slurm.submission_of(job, ranks, name=name, command=command)
    return pbs.submission_of(job, ranks, name=name, command=command)


def submit_argv(submission: Submission, folder: str = RUN, *, after: str = "") -> list[str]:
    """The command line that submits a job with a script in the run's folder; `after`: the job that must be over first."""
    argv = pbs.argv if submission.scheduler == "pbs" else slurm.argv
    return argv(submission, folder, after)
