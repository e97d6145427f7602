"""The end of the Slurm job that has the nodes of a run: whether Slurm ends it, and why it is over."""

import asyncio
import math
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from functools import partial

from engine.core.plan.batch.job import WAITING, QueuedJob, end_words
from engine.core.plan.batch.slurm import ENDING_FORMAT, FORMAT, LIMIT_FORMAT, LIMIT_VARIABLES, ending_state, parse_queue
from engine.core.run import events as ev
from engine.core.views.view import JobView
from engine.runs.ends.ending import REQUEUE
from engine.runs.record import place_here
from engine.supervisor.run import SupervisedRun

PATIENCE = 10.0  # seconds for squeue to answer

LONGEST = 60.0
"""Seconds in which a busy controller answers, and a job that is completing gets its last state, which tells why. After that, the job has
just ended."""

NO_LIMIT = 365 * 24 * 3600  # seconds after its start at which Slurm lets a job without a time limit end
SIGNAL_TIME = 0.1  # seconds in which every process of a node gets a signal that Slurm sends
PAUSE = 1.0  # seconds between two questions


class Job:
    """The job of a run. `drop_links`: ends the links to its nodes, where no agent is left."""

    def __init__(self, run: SupervisedRun, drop_links: Callable[[], None]) -> None:
        self._run, self._drop_links = run, drop_links
        self._waiting: list[Callable[[], None]] = []
        """Reports about ends of ranks that are not handled yet."""
        self._asks = False
        self._end: asyncio.Task[None] | None = None
        self._is_over = False
        self._signalled_at = 0.0
        self.find_saved: Callable[[], Awaitable[None]]
        """Looks for checkpoints, if no agent has. `Reports` sets it."""

    @property
    def number(self) -> str:
        """The number of the job; empty: there is none."""
        return self._run.plan.reach.slurm_job or os.environ.get("SLURM_JOB_ID", "")

    def after_signal(self, report: Callable[[], None]) -> None:
        """Handles the end of a rank, if Slurm has not ended it. The rank may have got SIGTERM, and have ended, before its agent got it."""
        if not self.number:
            report()
            return
        self._waiting.append(report)
        if len(self._waiting) == 1 and not self._asks:
            asyncio.get_running_loop().call_later(SIGNAL_TIME, self._go_on)

    def take_signal(self) -> None:
        """Asks Slurm why a node has got SIGTERM; other nodes get it in the same moment."""
        if self.number and not self._asks and self._end is None:
            self._asks, self._signalled_at = True, time.time()
            self._run.tasks.create_task(self._decide(), name=f"what becomes of job {self.number}")

    async def watch(self) -> None:
        """Tells where the job is and when its time limit ends it, as the job's own variables say, or else Slurm. Asks again when the job should
        have ended, because the limit may be another one by then."""
        job = recorded_view(self.number)
        while True:
            said: str | None = ""
            if job is None:
                said = await _squeue(self.number, f"--format={LIMIT_FORMAT}")
                job = job_view(self.number, said or "")
            self._run.job = job
            self._run.note_change()
            wait = math.inf if said else 0.0  # without a limit for ever; without an answer not at all
            if job.ends_at is not None:
                wait = max(0.0, job.ends_at - time.time())
            await asyncio.sleep(LONGEST + wait)
            job = None

    async def _decide(self) -> None:
        said = await _ask(self.number, f"--Format={ENDING_FORMAT}")
        if said is not None and (ends := ending_state(said)) is not None:
            state, may_begin_again = ends
            self._run.handle(ev.JobEnding(at=self._signalled_at, reason=f"Slurm ends job {self.number}"))
            self.end("" if may_begin_again and place_here() else state)
        self._asks = False
        self._go_on()

    def _go_on(self) -> None:
        if self._asks:
            return
        waiting, self._waiting = self._waiting, []
        for report in waiting:
            report()

    def end(self, state: str | None = None) -> None:
        """Ends the run, because its job is over. `state`: what ends it, if it is not over yet; empty: that is not known."""
        self._is_over = self._is_over or state is None
        if self._end is None:
            self._end = self._run.tasks.create_task(self._end_run(state), name=f"the end of job {self.number}")

    async def _end_run(self, state: str | None) -> None:
        run = self._run
        while not self._is_over and any(  # noqa: ASYNC110 - ranks save, and agents end
            node.link in ("up", "down") for node in run.state.nodes
        ):
            await asyncio.sleep(PAUSE / 10)
        if not run.ended.is_set():
            await self.find_saved()
        if not run.ended.is_set() and (state != "" or place_here() is None):
            known = QueuedJob(job=self.number, state=state) if state else await find_end(self.number)
            # Slurm will start the job again, and this supervisor, which runs in it, leaves the run to the next start.
            if known is not None and known.state in WAITING and place_here():
                run.handle(ev.StopRequested(at=time.time(), by=REQUEUE, at_once=True, again=True))
            run.handle(ev.JobEnded(at=time.time(), reason=end_words(self.number, known)))
        run.ended.set()  # Slurm tells the last state of the job after this process, which runs in it, has ended: the next command asks
        self._drop_links()


def job_view(job: str, text: str) -> JobView:
    """A job as front ends show it. `text`: the output of `squeue --noheader --format LIMIT_FORMAT` about it."""
    end, limit, partition, *_ = [*text.strip().split("|"), "", ""]
    has_end = end.isdecimal() and limit != "UNLIMITED"  # without a limit Slurm names the day in a year
    return JobView(job=job, partition=partition, ends_at=float(end) if has_end else None)


def recorded_view(job: str) -> JobView | None:
    """A job as its variables describe it to this process, which runs in it; None: they don't, as those of Slurm before `SLURM_JOB_END_TIME`."""
    end, start, partition = (
        os.environ.get(f"SLURM_JOB_{name}", "") for name in ("END_TIME", "START_TIME", "PARTITION")
    )
    if os.environ.get("SLURM_JOB_ID") != job or not (end.isdecimal() and start.isdecimal()):
        return None
    has_end = int(end) - int(start) < NO_LIMIT
    return JobView(job=job, partition=partition, ends_at=float(end) if has_end else None)


async def find_end(job: str) -> QueuedJob | None:
    """The last state of a job that is over, or is completing; None: Slurm has forgotten it, or does not answer."""

    def is_told(said: str) -> bool:
        found = parse_queue(said).get(job)
        return found is None or found.state != "COMPLETING"

    return parse_queue(await _ask(job, f"--format={FORMAT}", is_told) or "").get(job)


async def _ask(job: str, form: str, is_told: Callable[[str], bool] = lambda said: True) -> str | None:
    """The answer of squeue about a job, in a form. If squeue gives none, or one that does not count yet, it is asked again for a while."""
    end = time.monotonic() + LONGEST
    while True:
        said = await _squeue(job, form)
        if (said is not None and is_told(said)) or time.monotonic() > end:
            return said
        await asyncio.sleep(PAUSE)


async def _squeue(job: str, form: str) -> str | None:
    """The answer of squeue about a job; empty: nothing, or there is no squeue; None: it fails, or does not answer in time."""
    words = ("squeue", "--noheader", "--states=all", f"--jobs={job}", form)
    ask = partial(
        subprocess.run,
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
        env=os.environ | LIMIT_VARIABLES,
    )
    try:
        done = await asyncio.to_thread(ask)
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
