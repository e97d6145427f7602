"""`in-job FOLDER`: what the batch script of a submitted run does, on the first node of its job.

It makes the plan on the job's nodes, starts the supervisor, and ends with the run, so that Slurm frees the nodes at once. Shortly before
the time limit it stops the run; with `on_limit = "requeue"`, it has submitted another job by then, which continues the run. A run that
has lost a node and has spare ones goes on in the same job.
"""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from engine.client.run import LocalRun
from engine.client.starting import start_supervisor
from engine.commands.follow import snapshots
from engine.commands.output import narrate
from engine.core.errors import CheckError, RankdeckError
from engine.core.plan.batch.job import SCHEDULER_NAMES, Scheduler, end_words, with_message
from engine.core.plan.batch.pbs import walltime_seconds
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import PbsJob, Profile, SlurmJob
from engine.gate import LAUNCHED
from engine.linux.files import replace_file
from engine.planning.batch import BATCH_SYSTEMS, submit
from engine.planning.batch.slurm import last_end
from engine.planning.make import make_plan
from engine.planning.nodes import Nodes, nodes_of
from engine.planning.profiles import read_launched
from engine.runs.ends.ending import LIMIT, REQUEUE, end_run, lock_of_lost, write_queued
from engine.runs.listing import summarise
from engine.runs.lock import is_taken
from engine.runs.paths import RunPaths
from engine.runs.record import Submitted, place_here, read_plan, read_submitted, replace_plan
from engine.runs.replay import has_begun, stored_snapshot, waits_again

NAME_TIME = 60.0  # seconds in which a command that submits the next job of a run writes its number down
MAX_FRUITLESS = 2  # jobs in a row that get no further than an earlier one, after which no other is submitted


def main(folder: str) -> int:
    """Runs a submitted run until the run or this job ends. Returns the exit status: 1 if it has failed."""
    paths, began = RunPaths(Path(folder)), time.monotonic()
    try:
        submitted = _take_job(paths, _scheduler_of(read_plan(paths)))
        if has_begun(paths) and not waits_again(paths):
            narrate(f"{paths.run} has ended, and there is nothing to continue")
            return 0
        if submitted.fruitless >= MAX_FRUITLESS:  # Slurm has started the job again
            raise CheckError(_fruitless_words(submitted))
        profile = read_launched(paths.profile)
        job = profile.layout.job
        ends = {"PREEMPTED": job.on_preempt, "NODE_FAIL": job.on_node_fail} if isinstance(job, SlurmJob) else {}
        end = last_end(submitted.job) if ends and has_begun(paths) else None
        if end is not None and ends.get(end.state) == "stop":  # and Slurm has started the job again all the same
            raise CheckError(end_words(submitted.job, end))
        replace_plan(paths, plan_here(profile, read_plan(paths)))
    except RankdeckError as error:
        narrate(f"{paths.run}: {error}")
        end_run(paths, f"it can't run on the job's nodes: {error.message}")
        return 1
    assert job is not None
    requeues = job.on_limit == "requeue"
    return asyncio.run(_Supervision(LocalRun(paths), submitted, profile, began, requeues=requeues).run())


def _scheduler_of(plan: LaunchPlan) -> Scheduler:
    assert plan.submission is not None
    return plan.submission.scheduler


def _take_job(paths: RunPaths, scheduler: Scheduler) -> Submitted:
    """Writes down that the run is in this job now. Its last job is over: if it was killed before the run had stopped, that is said now. Raises
    RankdeckError: the files of the run can't be read."""
    place, end = place_here(), time.monotonic() + NAME_TIME
    assert place is not None
    here, known = place.job, read_submitted(paths)
    while has_begun(paths) and (known is None or here not in (known.job, known.next)) and time.monotonic() < end:
        time.sleep(0.1)  # the command that submits the job has not named it yet
        known = read_submitted(paths)
    if known is not None and known.job == here and place.restarts <= known.restarts:
        return known
    if known is not None and known.job == here:
        known = msgspec.structs.replace(known, restarts=place.restarts)
        if has_begun(paths) and (snapshot := stored_snapshot(paths).run).state != "succeeded":
            known = _counted(known, snapshot.step)
            with lock_of_lost(paths):
                write_queued(paths, here, REQUEUE)
    elif known is None or known.next != here:  # the job has started before the command that submits it returned
        known = Submitted(job=here, at=paths.plan.stat().st_mtime, scheduler=scheduler)
    else:
        if not waits_again(paths):
            end_run(paths, f"{SCHEDULER_NAMES[scheduler]}'s job {known.job} has ended", by=LIMIT, again=True)
        known = msgspec.structs.replace(known, job=here, next="", restarts=place.restarts)
    replace_file(paths.job, msgspec.json.encode(known))
    return known


def _counted(known: Submitted, step: int | None) -> Submitted:
    """The job of a run, with the last step that it has reached."""
    if step is not None and (known.best is None or step > known.best):
        return msgspec.structs.replace(known, best=step, fruitless=0)
    return msgspec.structs.replace(known, fruitless=known.fruitless + 1)


def _fruitless_words(known: Submitted) -> str:
    """Why no other job continues the run."""
    further = "made no step" if known.best is None else f"got no further than step {known.best}"
    return f"{known.fruitless} jobs in a row {further}"


class _Supervision:
    """The run in this job. `began`: when the job did, on the monotonic clock."""

    def __init__(self, run: LocalRun, submitted: Submitted, profile: Profile, began: float, *, requeues: bool) -> None:
        self._run, self._submitted, self._profile, self._requeues = run, submitted, profile, requeues
        self._began = began
        self._step: int | None = None
        self._state = ""
        self._warned, self._deleted, self._seen = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> int:
        """Follows the run to its end, or until it waits for another job. Returns the exit status."""
        run, loop = self._run, asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._warned.set)
        job = self._profile.layout.job
        if isinstance(job, PbsJob):
            if job.warn:  # PBS sends no signal before the limit
                passed = time.monotonic() - self._began
                loop.call_later((walltime_seconds(job.walltime) or 0) - job.warn - passed, self._warned.set)
            # Without its cgroups hook, PBS ends only the session of this process, which supervisor and agents have left.
            loop.add_signal_handler(signal.SIGTERM, self._deleted.set)
        following = asyncio.create_task(self._supervise())
        if not isinstance(job, PbsJob):
            loop.add_signal_handler(signal.SIGTERM, following.cancel)  # Slurm ends the job, or somebody signals it
        stopping = asyncio.gather(self._stop_when_warned(), self._stop_when_deleted())
        try:
            await following
        except asyncio.CancelledError:
            await self._wait_free()  # ranks may save until Slurm kills them, and the supervisor with them
            self._state = summarise(run.paths).state
        finally:
            stopping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stopping
        if self._submitted.next and self._state != "queued":  # it was done, or the user has stopped it meanwhile
            with contextlib.suppress(CheckError):
                await asyncio.to_thread(BATCH_SYSTEMS[self._submitted.scheduler].cancel, self._submitted.next)
        return 1 if self._state == "failed" else 0

    def _has_next(self) -> bool:
        """Whether another job continues the run: of this process, or of a user who has restarted it."""
        return bool((read_submitted(self._run.paths) or self._submitted).next)

    async def _supervise(self) -> None:
        await asyncio.to_thread(start_supervisor, self._run.paths)
        await self._follow()
        job = self._profile.layout.job
        has_spares = (
            isinstance(job, SlurmJob) and job.spares > 0
        )  # without them the run waits, because Slurm starts this job again
        while has_spares and self._state == "queued" and not self._has_next() and await self._use_spare_nodes():
            await self._follow()

    async def _wait_free(self) -> None:
        """Waits for the end of the supervisor, which holds the lock."""
        while await asyncio.to_thread(is_taken, self._run.paths):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)

    async def _use_spare_nodes(self) -> bool:
        """Continues the run, which has lost a node, on the nodes that the job still has. Returns whether there are enough."""
        paths = self._run.paths
        await self._wait_free()
        try:
            plan = await asyncio.to_thread(plan_here, self._profile, read_plan(paths))
            replace_plan(paths, plan)
            await asyncio.to_thread(start_supervisor, paths)
        except (RankdeckError, OSError) as error:
            with contextlib.suppress(RankdeckError, OSError):  # another supervisor may have taken the run
                reason = error.message if isinstance(error, RankdeckError) else str(error)
                end_run(paths, f"it can't continue on other nodes: {reason}")
            self._state = "failed"
            return False
        return True

    async def _follow(self) -> None:
        run = self._run
        async with contextlib.aclosing(snapshots(run)) as stream:
            async for snapshot, _ in stream:
                if snapshot.run.step is not None:
                    self._step = max(self._step or 0, snapshot.run.step)
                if snapshot.run.state != self._state:
                    self._state = snapshot.run.state
                    narrate(f"{run.run}: {self._state} {snapshot.run.doing}".rstrip())
                self._seen.set()
                if self._state == "queued":
                    return

    async def _stop_when_warned(self) -> None:
        """Stops the run before Slurm ends its job: ranks get the stop ladder, and can write a checkpoint."""
        await self._warned.wait()
        await self._seen.wait()
        run, by = self._run, LIMIT
        narrate(f"{run.run}: the time limit of the job is near")
        if self._requeues and (why := await self._submit_again()):
            by = f"{LIMIT}, and not submitted again: {why}"
        with contextlib.suppress(RankdeckError):
            await run.stop(by=by, again=bool(self._submitted.next))

    async def _stop_when_deleted(self) -> None:
        """Stops the run when PBS ends its job."""
        await self._deleted.wait()
        await self._seen.wait()
        with contextlib.suppress(RankdeckError):
            await self._run.stop(by="PBS, which ends its job")

    async def _submit_again(self) -> str:
        """Submits the job that continues the run, before the ranks are stopped, which takes time. Returns why not; empty: it has."""
        known, run = self._submitted, self._run
        if self._state not in ("starting", "running"):
            return f"it is {self._state}, and waits for you"
        known = _counted(known, self._step)
        if known.fruitless >= MAX_FRUITLESS:
            return _fruitless_words(known)
        try:
            plan = await asyncio.to_thread(read_plan, run.paths)
            number, said = await asyncio.to_thread(submit, plan, run.paths, after=known.job)
        except (RankdeckError, OSError) as error:
            return str(error)
        self._submitted = msgspec.structs.replace(known, at=time.time(), next=number, said=said)
        replace_file(run.paths.job, msgspec.json.encode(self._submitted))
        narrate(with_message(f"{run.run} goes on in job {number}", said))
        return ""


def plan_here(profile: Profile, submitted: LaunchPlan) -> LaunchPlan:
    """The plan of a submitted run on the nodes of the job that this process is part of. `submitted`: the plan that was made before."""
    job = profile.layout.job
    assert job is not None
    ranks = job.ranks_per_node or profile.layout.ranks_per_node
    layout = msgspec.structs.replace(profile.layout, ranks_per_node=ranks)
    if isinstance(job, PbsJob):
        layout = msgspec.structs.replace(layout, pbs="current")
    else:  # with spare nodes, squeue tells which the job still has
        layout = msgspec.structs.replace(layout, slurm=int(os.environ["SLURM_JOB_ID"]) if job.spares else "current")
    slots, number = nodes_of(layout, LAUNCHED)
    if len(slots) < job.nodes:
        whose = SCHEDULER_NAMES[_scheduler_of(submitted)]
        raise CheckError(f"{whose}'s job {number} has {len(slots)} of {job.nodes} nodes left")
    launch = msgspec.structs.replace(profile.launch, workdir=submitted.workdir)
    nodes = Nodes(slots[: job.nodes], number)
    plan = make_plan(msgspec.structs.replace(profile, layout=layout, launch=launch), LAUNCHED, nodes=nodes)
    program = submitted.program if submitted.program.kind == "script" else plan.program
    spare = tuple(slot.node for slot in slots[job.nodes :])
    return msgspec.structs.replace(
        plan, submission=submitted.submission, program=program, swept=submitted.swept, spare_nodes=len(spare),
        spare_names=spare if plan.launch.sync == "none" else (),
    )  # fmt: skip
