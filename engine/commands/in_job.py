"""`in-job FOLDER`: what the batch script of a submitted run does, on the first node of its job.

It makes the plan on the job's nodes, starts the supervisor, and ends with the run, so that Slurm frees the nodes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec

from engine.client.connection import start_supervisor
from engine.client.run import LocalRun
from engine.commands.follow import snapshots
from engine.commands.output import narrate
from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, SlurmJob
from engine.planning.make import make_plan
from engine.planning.profiles import read_profile
from engine.runs.ending import end_run
from engine.runs.paths import RunPaths
from engine.runs.record import Submitted, read_plan, replace_file

LIMIT = "the time limit of its job"
"""Who stops a run shortly before that."""


def main(folder: str) -> int:
    """Runs a submitted run to its end.

    Args:
        folder: of the run.

    Returns:
        The exit status: 1 if it has failed.
    """
    paths = RunPaths(Path(folder))
    if not paths.job.exists():  # the job has started before sbatch returned
        submitted = Submitted(job=os.environ["SLURM_JOB_ID"], at=paths.plan.stat().st_mtime)
        replace_file(paths.job, msgspec.json.encode(submitted))
    try:
        write_plan(paths, plan_here(read_profile(paths.profile), read_plan(paths)))
    except RankdeckError as error:
        narrate(f"{paths.run}: {error}")
        end_run(paths, f"it can't run on the job's nodes: {error.message}")
        return 1
    return asyncio.run(_run(LocalRun(paths)))


async def _run(run: LocalRun) -> int:
    await start_supervisor(run.paths)
    stops: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: stops.add(loop.create_task(_stop(run))))
    state = ""
    async with contextlib.aclosing(snapshots(run)) as stream:
        async for snapshot, _ in stream:
            if snapshot.run.state != state:
                state = snapshot.run.state
                narrate(f"{run.run}: {state} {snapshot.run.doing}".rstrip())
    return 1 if state == "failed" else 0


async def _stop(run: LocalRun) -> None:
    """Stops the run before Slurm ends its job: ranks get the stop ladder, and can write a checkpoint."""
    narrate(f"{run.run}: the time limit of the job is near")
    with contextlib.suppress(RankdeckError):
        await run.stop(by=LIMIT)


def plan_here(profile: Profile, submitted: LaunchPlan) -> LaunchPlan:
    """The plan of a submitted run on the nodes of the job that this process is part of.

    Args:
        profile: as it was launched.
        submitted: the plan that was made before.
    """
    job = profile.layout.slurm
    assert isinstance(job, SlurmJob)
    ranks = job.ranks_per_node or profile.layout.ranks_per_node
    layout = msgspec.structs.replace(profile.layout, slurm="current", ranks_per_node=ranks)
    launch = msgspec.structs.replace(profile.launch, workdir=submitted.workdir)
    plan = make_plan(msgspec.structs.replace(profile, layout=layout, launch=launch))
    program = submitted.program if submitted.program.kind == "script" else plan.program
    return msgspec.structs.replace(plan, submission=submitted.submission, program=program)


def write_plan(paths: RunPaths, plan: LaunchPlan) -> None:
    """Replaces the plan of a run. Its time stays, because it tells when the run was launched."""
    times = paths.plan.stat()
    replace_file(paths.plan, msgspec.json.encode(plan))
    os.utime(paths.plan, (times.st_atime, times.st_mtime))
