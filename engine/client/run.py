"""`RunClient` for a run of this machine: its files, and its supervisor's socket."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from engine.client.connection import Connection
from engine.client.starting import start_supervisor
from engine.core.errors import (
    EndingJobError,
    QueuedRunError,
    RankdeckError,
    SilentSlurmError,
    SupervisorDefectError,
    SupervisorElsewhereError,
    SupervisorError,
    SupervisorLostError,
)
from engine.core.failures.stacks import RankStack, story
from engine.core.metrics.bench import Result
from engine.core.plan.batch.job import SCHEDULER_NAMES
from engine.core.run.events import Scope
from engine.core.run.state import ENDED_WORDS
from engine.core.views.view import Snapshot, Update
from engine.core.wire import front_end as msg
from engine.linux.locks import is_locked
from engine.runs.index import stamp_of
from engine.runs.lock import is_taken
from engine.runs.log_order import OrderIndex
from engine.runs.paths import RunPaths, Stream
from engine.runs.record import Submitted, host_elsewhere, is_in_job, read_results, read_submitted, refuse_elsewhere

MAX_STARTS, START_WINDOW = 8, 60.0  # a client starts at most 8 supervisors in 60 seconds, in case each crashes


CONNECT_TIME, MAX_FAILURES = 30.0, 3
"""Seconds in which a supervisor that another process starts must listen, and failed starts after which a client gives up."""

QUEUE_PERIOD = 5.0  # seconds between two looks at a run that waits in a queue
SUSPENDED_PERIOD = 60.0  # the same for a run whose job is suspended, unless its supervisor writes something
JOB_TIME, JOB_PERIOD = 60.0, 0.5  # seconds in which the supervisor in a job that runs answers, and between two tries

START_TIME = 60.0
"""Seconds that a signal waits for a rank that is about to start, on a busy machine too. It may print before the supervisor knows of its
process."""

END_TIME = 10.0  # Seconds in which a supervisor has ended after its last message. Usually it takes a tenth of one.


def _stored_snapshot(paths: RunPaths) -> Snapshot:
    """`engine.runs.replay.stored_snapshot`, imported when a run is opened: the first screen needs only summaries."""
    from engine.runs.replay import stored_snapshot

    return stored_snapshot(paths)


class LocalRun:
    """A run on this machine; see `RunClient`."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.run = paths.run
        self.folder = paths.folder
        self._starts: deque[float] = deque(maxlen=MAX_STARTS)
        """When supervisors were started from here."""

    async def _connect(self, *, patient: bool = True) -> Connection | None:
        """A connection to the supervisor, which is started again if it was lost; None once the run has ended. `patient`: waits for a batch
        system that is silent, as long as its commands do. Raises SupervisorError: it is on another host, or can't be started."""
        submitted = read_submitted(self.paths)
        if submitted is None:
            try:
                return await self._connect_here()
            except SupervisorElsewhereError:
                if (submitted := read_submitted(self.paths)) is None:  # else its supervisor has just begun in a job
                    raise
        return await self._connect_to_job(submitted, patient=patient)

    async def _connect_here(self) -> Connection | None:
        """A connection to a supervisor on this host; see `_connect`. Raises SupervisorError, like it."""
        deadline, failures, said = time.monotonic() + CONNECT_TIME, 0, ""
        while failures < MAX_FAILURES and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionError):
                return await Connection.open(self.paths)
            if (await asyncio.to_thread(_stored_snapshot, self.paths)).run.state in ENDED_WORDS:
                return None
            refuse_elsewhere(self.paths, "attach")
            if await asyncio.to_thread(is_taken, self.paths):
                await asyncio.sleep(0.05)  # a supervisor that a guard or another command starts does not listen yet
                continue
            self._count_start()
            try:
                await self._start()
            except SupervisorError as error:
                failures, said = failures + 1, f": {error.message}"
        hint = f"its log: {self.paths.supervisor_log}"
        raise SupervisorError(f"the supervisor of {self.run} does not answer{said}", hint=hint)

    async def _start(self) -> None:
        """Starts a supervisor in place of one that was lost. Raises SupervisorError."""
        await asyncio.to_thread(start_supervisor, self.paths)

    async def _connect_to_job(self, submitted: Submitted, *, patient: bool) -> Connection | None:
        """A connection to the supervisor in a job. Only inside of the job it is started again; None once the run has ended. `patient`: see
        `_connect`. Raises SupervisorError: the job waits, or the supervisor does not answer."""
        from engine.client.jobs import look, refuse_suspended  # not needed for other runs
        from engine.planning.batch import BATCH_SYSTEMS

        end = time.monotonic() + JOB_TIME
        while True:
            submitted = read_submitted(self.paths) or submitted  # it may go on in another job
            system = BATCH_SYSTEMS[submitted.scheduler]
            state = (await asyncio.to_thread(_stored_snapshot, self.paths)).run.state
            if state in ENDED_WORDS:
                return None
            if state == "queued":
                words = await asyncio.to_thread(look, self.paths, submitted)
                hint = f"rankdeck stop {self.run} cancels its job"
                raise QueuedRunError(f"{self.run} has no ranks yet: {words}", hint=hint)
            with contextlib.suppress(ConnectionError):
                if host_elsewhere(self.paths):
                    await asyncio.to_thread(system.check_answers, submitted.job, patient=patient)
                if patient:
                    await asyncio.to_thread(refuse_suspended, self.paths, submitted)
                return await self._open(submitted)
            from engine.runs.replay import leaves_job

            is_here = is_in_job(submitted) and not host_elsewhere(self.paths)
            is_ending = await asyncio.to_thread(leaves_job, self.paths)
            if is_here and not is_ending:
                if not await asyncio.to_thread(is_taken, self.paths):
                    self._count_start()
                    with contextlib.suppress(SupervisorError):  # a guard was faster
                        await self._start()
                await asyncio.sleep(0.05)
                continue
            words = await asyncio.to_thread(look, self.paths, submitted)
            hint = f"{system.SHOW} {submitted.job}"
            if is_ending:
                raise EndingJobError(f"job {submitted.job} ends, and the supervisor of {self.run} has ended", hint=hint)
            if time.monotonic() > end:
                raise SupervisorError(f"the supervisor of {self.run} does not answer, and {words}", hint=hint)
            await asyncio.sleep(JOB_PERIOD)

    async def _open(self, submitted: Submitted) -> Connection:
        """A connection to the supervisor in a job, which may be suspended meanwhile. Raises as `Connection.open`, and SuspendedJobError."""
        from engine.client.jobs import refuse_suspended  # not needed for other runs

        opening = asyncio.ensure_future(Connection.open(self.paths))
        try:
            while not (await asyncio.wait([opening], timeout=QUEUE_PERIOD))[0]:
                await asyncio.to_thread(refuse_suspended, self.paths, submitted)
            return opening.result()
        finally:
            opening.cancel()

    def _count_start(self) -> None:
        """Raises SupervisorError if too many supervisors of this run have ended within a short time."""
        now = time.monotonic()
        if len(self._starts) == MAX_STARTS and now - self._starts[0] < START_WINDOW:
            raise SupervisorError(
                f"{MAX_STARTS} supervisors of {self.run} have ended within {START_WINDOW:g} s",
                hint=f"the ranks keep running; why they ended is at the end of {self.paths.supervisor_log}",
            )
        self._starts.append(now)

    async def subscribe(self, *, patient: bool = True) -> AsyncGenerator[Snapshot | Update, None]:
        """See `RunClient`; `patient`: see `_connect`."""
        state = "queued"
        while state == "queued":  # one job after the other
            async with contextlib.aclosing(self._subscribe_to_job(patient=patient)) as messages:
                async for message in messages:
                    state = message.run.state if message.run is not None else state
                    yield message

    async def _subscribe_to_job(self, *, patient: bool) -> AsyncGenerator[Snapshot | Update, None]:
        """The run until it has ended, or waits for its next job."""
        while (submitted := await asyncio.to_thread(waits_for, self.paths)) is not None:
            from engine.client.jobs import queued_snapshot  # not needed for other runs

            snapshot = await asyncio.to_thread(queued_snapshot, self.paths, submitted)
            if snapshot.run.state != "queued":
                break
            yield snapshot
            await _wait_change(self.paths.journal, QUEUE_PERIOD)  # which tells when the run leaves the queue
        if self.paths.job.exists():
            from engine.client.jobs import suspended_snapshot  # not needed for other runs

            while (stored := await asyncio.to_thread(suspended_snapshot, self.paths, asks=patient)) is not None:
                yield stored
                await _wait_change(self.paths.summary, SUSPENDED_PERIOD)
        while True:
            try:
                connection = await self._connect(patient=patient)
            except QueuedRunError:  # it has just left its job
                connection = None
            except EndingJobError:  # a job whose script ends before its GraceTime is over does not begin again
                if not patient:
                    raise
                await _wait_change(self.paths.journal, QUEUE_PERIOD)
                continue
            break
        if connection is None:
            yield await asyncio.to_thread(_stored_snapshot, self.paths)
            return
        ended = False
        async with contextlib.aclosing(self._messages(connection)) as messages:
            async for message in messages:
                if isinstance(message, Snapshot | Update):
                    ended = ended if message.run is None else message.run.state in ENDED_WORDS
                    yield message
        if not ended:
            last = await asyncio.to_thread(_stored_snapshot, self.paths)
            if last.run.state not in ENDED_WORDS and last.run.state != "queued":
                raise SupervisorLostError(f"the supervisor of {self.run} is gone; the ranks keep running")
            yield last
        await _wait_released(self.paths)

    async def _messages(self, connection: Connection) -> AsyncGenerator[msg.Reply | Snapshot, None]:
        """Subscribes. Yields all messages of the supervisor; and the run from its files, once, if its job is suspended meanwhile."""
        limit, is_told = QUEUE_PERIOD if self.paths.job.exists() else None, False
        reading = asyncio.ensure_future(connection.read())
        try:
            connection.write(msg.Subscribe())
            while True:
                if (await asyncio.wait([reading], timeout=limit))[0]:
                    if (message := reading.result()) is None:
                        return
                    reading, is_told = asyncio.ensure_future(connection.read()), False
                    yield message
                elif not is_told:
                    from engine.client.jobs import suspended_snapshot  # not needed for other runs

                    stored = await asyncio.to_thread(suspended_snapshot, self.paths, asks=False)
                    if is_told := stored is not None:
                        yield stored
        finally:
            reading.cancel()
            connection.close()

    async def snapshot(self) -> Snapshot:
        """The run at this moment; from its files if its supervisor is in a job on another host, where only a step of the job reaches it."""
        if self.paths.job.exists():
            from engine.client.jobs import seen_snapshot  # not needed for other runs

            if (seen := await asyncio.to_thread(seen_snapshot, self.paths)) is not None:
                return seen
        words = ""
        for _ in range(3):
            with contextlib.suppress(SupervisorLostError):
                try:
                    async with contextlib.aclosing(self.subscribe(patient=False)) as messages:
                        async for message in messages:
                            if isinstance(message, Snapshot):
                                return message
                except (EndingJobError, SilentSlurmError) as error:
                    words = error.message
                    break
        stored = await asyncio.to_thread(_stored_snapshot, self.paths)
        return msgspec.structs.replace(stored, run=msgspec.structs.replace(stored.run, doing=words or stored.run.doing))

    async def _ask(self, request: msg.Stop | msg.Restart | msg.Kill) -> msg.Answer | None:
        if (connection := await self._connect()) is None:
            return None
        answer = await connection.ask(request)
        if isinstance(answer, msg.Refused) and answer.defect:
            hint = f"its log: {self.paths.supervisor_log}"
            raise SupervisorDefectError(f"the supervisor of {self.run} has failed: {answer.reason}", hint=hint)
        if isinstance(answer, msg.Refused):
            raise SupervisorError(f"the supervisor of {self.run} refused: {answer.reason}")
        if not isinstance(answer, msg.Answer):
            hint = f"rankdeck status {self.run} shows whether the request was received"
            raise SupervisorError(f"the supervisor of {self.run} closed the connection without an answer", hint=hint)
        return answer

    async def stop(self, *, at_once: bool = False, by: str = "", again: bool = False, by_job: bool = False) -> str:
        """Stops the run. `at_once`: without the stop ladder. `by`: who wants that; empty: the user. `again`, `by_job`: see `StopRequested`."""
        if (submitted := await asyncio.to_thread(waits_for, self.paths)) is not None:
            return await asyncio.to_thread(_cancel, self.paths, submitted)
        answer = await self._ask(msg.Stop(by=by or user_name(), at_once=at_once, again=again, by_job=by_job))
        return answer.text if answer else "the run has ended already"

    async def restart(
        self, scope: Scope = "smallest", *, attempt: int | None = None, generation: int | None = None
    ) -> str:
        """A run that has ended gets a new supervisor."""
        for _ in range(20):
            request = msg.Restart(by=user_name(), scope=scope, attempt=attempt, generation=generation)
            answer = await self._ask(request)
            if answer is None:
                break
            if not answer.ending:
                if answer.refused:
                    raise RankdeckError(f"{self.run} can't be restarted: {answer.text}")
                return answer.text
            await asyncio.sleep(0.25)
        await _wait_released(self.paths)
        if (submitted := read_submitted(self.paths)) is not None and not submitted.by_user:
            from engine.client.jobs import submit_again  # not needed for other runs

            return await asyncio.to_thread(submit_again, self.paths, submitted, user_name())
        if submitted is not None and not is_in_job(submitted):
            job = f"{SCHEDULER_NAMES[submitted.scheduler]}'s job {submitted.job}"
            hint = "restart it there, or submit its batch file again"
            raise RankdeckError(f"{self.run} was launched inside {job}, which this command is not part of", hint=hint)
        refuse_elsewhere(self.paths, "restart")
        words = _stored_snapshot(self.paths).run.restart
        await asyncio.to_thread(start_supervisor, self.paths, user_name())
        return f"now: {words}"

    async def kill(self, rank: int, signal: int, *, pid: int | None = None) -> str:
        deadline = time.monotonic() + START_TIME
        while (answer := await self._ask(msg.Kill(by=user_name(), rank=rank, signal=signal, pid=pid))) is not None:
            if answer.done:
                return answer.text
            if not answer.early or time.monotonic() >= deadline:
                raise RankdeckError(f"rank {rank} of {self.run} can't be signalled: {answer.text}")
            await asyncio.sleep(0.1)
        raise RankdeckError(f"rank {rank} can't be signalled: {self.run} has ended")

    async def stacks(self) -> list[str]:
        return story(await self.rank_stacks())

    async def rank_stacks(self) -> tuple[RankStack, ...]:
        """The stacks of every rank. Raises RankdeckError if the run has ended."""
        if (connection := await self._connect()) is None:
            raise RankdeckError(f"{self.run} has ended: no rank has a stack")
        answer = await connection.ask(msg.AskStacks())
        if not isinstance(answer, msg.Stacks):
            raise SupervisorError(f"the supervisor of {self.run} did not send the stacks of its ranks")
        return answer.ranks

    def log_path(self, attempt: int, rank: int, stream: Stream) -> Path:
        return self.paths.log(attempt, rank, stream)

    def log_order(self, attempt: int) -> OrderIndex:
        return OrderIndex(self.paths.order(attempt))

    def results(self, attempt: int) -> list[Result]:
        return read_results(self.paths, attempt)

    def news(self) -> str:
        from engine.client.history import news_of  # reads other runs, which only failures need

        return news_of(self.paths)

    async def close(self) -> None:
        """Nothing is held open between requests."""


async def _wait_change(path: Path, seconds: float) -> None:
    """Returns when a file is another than before, and after some seconds in any case."""
    before = stamp_of(str(path))
    for _ in range(round(seconds / JOB_PERIOD)):
        await asyncio.sleep(JOB_PERIOD)
        if stamp_of(str(path)) != before:
            return


def waits_for(paths: RunPaths) -> Submitted | None:
    """The job of a run that waits for it; None: it does not wait for any."""
    if (submitted := read_submitted(paths)) is None:
        return None
    from engine.runs.replay import is_queued

    return submitted if is_queued(paths) else None


def _cancel(paths: RunPaths, submitted: Submitted) -> str:
    """Cancels a job that waits, and ends its run."""
    from engine.client.jobs import awaited_job
    from engine.planning.batch import BATCH_SYSTEMS
    from engine.runs.ends.ending import end_run

    job, name = awaited_job(paths, submitted), SCHEDULER_NAMES[submitted.scheduler]
    BATCH_SYSTEMS[submitted.scheduler].cancel(job)
    end_run(paths, f"{name}'s job {job} was cancelled", by=user_name())
    return f"{name}'s job {job} is cancelled"


async def _wait_released(paths: RunPaths) -> None:
    """Returns when the supervisor of a run has released its lock, which it does last, or after `END_TIME`."""
    end = time.monotonic() + END_TIME
    while time.monotonic() < end:
        try:
            if not is_locked(paths.lock):
                return
        except OSError:  # the folder is gone, or its file system has no locks
            return
        await asyncio.sleep(0.005)


def user_name() -> str:
    """The user's name, for the journal."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"
