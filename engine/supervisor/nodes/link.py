"""The link to a node's agent: exchanges frames with it, and reconnects if the connection breaks."""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Callable

import msgspec

from engine.core.failures.services import ended_words
from engine.core.failures.ssh import Trouble
from engine.core.wire import agent_reports as reports
from engine.core.wire import agent_requests as requests
from engine.node.agent.wire import EXIT_FAILED, MISSED_BEATS, FrameBuffer, encode_frame
from engine.supervisor.log import note
from engine.supervisor.nodes.bridge import BOOT_TIMEOUT, CHUNK, BootError, Bridge, Starter, read_tail, wait_gone

RETRIES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reconnect; the last one repeats. The first is immediate, because a killed agent is back in milliseconds."""

BUSY_PATIENCE = 60.0
"""Seconds in which a first connection is tried again if the server refuses it because it is busy, as sshd does with many at once
(MaxStartups 10:30:100)."""

KILLED_RETRIES = 3  # times that a first connection is tried again if bridge or agent was killed before an answer
STEADY_TIME = 10.0  # seconds that a connection lasts before the retries are counted anew
LAST_CHANCE = 1.0  # seconds to read data that has arrived while this process was stopped for longer than a heartbeat
FAN_OUT = 32  # connections that are opened at the same time
MAX_UNKNOWN = 16  # unknown message types that are written to the log, each once


class Link:
    """Keeps one node connected.

    Args:
        argv: the command that boots an agent.
        greeting: the first frame; it contains the run's mark.
        on_news: called with every report of the agent, its Hello first. Raises ValueError for an invalid one.
        on_down: called with the reason when an open link breaks.
        on_failed: called with the reason when the node is given up, and whether that is because its job is over.
        on_closed: called when the agent has ended because of `close`.
        explain: describes a failed start from the command's exit status (None: it printed nothing in time), its errors, and perhaps `Ended`.
        gate: limits how many links are opened at the same time.
        heartbeat: longest seconds between two messages, of which a few may be missed; 0: no heartbeat.
        boot_timeout: seconds until the agent's sync line.
        bridge: an open connection to a listening agent, released by another link; None: start one.
        preamble: input for the command before the first frame.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        node: str,
        argv: list[str],
        greeting: requests.Greeting,
        *,
        on_news: Callable[[reports.AnyReport], None],
        on_down: Callable[[str], object],
        on_failed: Callable[[str, bool], None],
        on_closed: Callable[[], object],
        explain: Callable[..., Trouble],
        gate: asyncio.Semaphore,
        heartbeat: float = 0.0,
        boot_timeout: float = BOOT_TIMEOUT,
        bridge: Bridge | None = None,
        preamble: bytes,
    ) -> None:
        self.node = node
        self._tasks = tasks
        self._starter = Starter(argv, explain, boot_timeout, preamble)
        self.greeting = greeting
        self._boot_timeout = boot_timeout
        self._on_news, self._on_down, self._on_failed, self._on_closed = on_news, on_down, on_failed, on_closed
        self._gate, self._heartbeat = gate, heartbeat
        self._patience = self._down_since = self._up_since = 0.0
        self._bridge = bridge
        self._process: Bridge | None = None
        self._released = False
        self._task: asyncio.Task[None] | None = None
        self.closing = False  # whether the agent was asked to end, or will be when the link is up
        self._is_up = self._is_silent = self._has_closed = self._keep = self._was_killed = False
        self._complaints: set[asyncio.Task[bytes]] = set()
        self._unknown: set[str] = set()
        """Message types that this supervisor does not know, from an agent of another version."""

    def open(self, patience: float) -> None:
        """Starts connecting. The callbacks report the outcome. `patience`: seconds from now in which failures are not reported, but retried.
        If the link is reconnecting already, only this changes."""
        self._patience, self._down_since = patience, asyncio.get_running_loop().time()
        if self._task is None or self._task.done():
            self.closing = self._has_closed = False
            self._task = self._tasks.create_task(self._work(), name=f"the link to {self.node}")

    def send(self, request: requests.Request) -> None:
        """Sends a request. Without a connection it is dropped, because the state machine repeats it after the next one."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(_frame(request))

    def remember_folder(self, folder: str) -> None:
        """Stores where to find the agent at the next connection, because a login may have another temporary folder."""
        self.greeting = msgspec.structs.replace(self.greeting, folder=folder)

    def close(self, *, keep: bool = False) -> None:
        """Asks the agent to end. A link that is being opened is waited for, because a booting agent would be left.

        `keep`: the agent keeps its files.
        """
        is_new = not self.closing or (keep and not self._keep)
        self.closing, self._keep = True, keep or self._keep
        if is_new:  # an agent that has ended because of the first request can't receive a second
            self.send(requests.Close(keep=self._keep))

    async def _work(self) -> None:
        """Connects and reconnects, until the agent was asked to end or the node is given up."""
        loop = asyncio.get_running_loop()
        tries, begun = 0, loop.time()
        while True:
            await asyncio.sleep(RETRIES[min(tries, len(RETRIES) - 1)] * random.uniform(1.0, 1.5))
            self._is_up, self._is_silent, was_taken_over = False, False, self._bridge is not None
            trouble, self._was_killed = Trouble(fact="", hint=""), False
            try:
                reason = await self._serve()
            except BootError as error:
                reason, trouble, self._was_killed = str(error), error.trouble, error.was_killed
            except Exception as error:  # noqa: BLE001 - a defect costs this connection, not the supervisor
                note("".join(traceback.format_exception(error)))
                reason = f"a defect: {type(error).__name__}: {error}"
            if self._is_up and not self._has_closed:
                tries = 0 if loop.time() - self._up_since > STEADY_TIME else tries + 1
                self._down_since = loop.time()
                self._on_down(reason)
                continue
            if was_taken_over and not self._is_up:
                continue  # it ended meanwhile: start another
            tries += 1
            if not (self._is_up or trouble.final or trouble.gone) and (
                loop.time() - self._down_since < self._patience
                or (trouble.retry and loop.time() - begun < BUSY_PATIENCE)
                or (self._was_killed and tries <= KILLED_RETRIES)
            ):
                continue
            self._task = None  # the callbacks may open the link again
            if self._is_up:
                self._on_closed()
            else:
                self._on_failed(reason, trouble.final)
            return

    async def _serve(self) -> str:
        """Serves one connection from boot to end. Returns why it ended; raises BootError if no agent started."""
        process, self._bridge = self._bridge, None
        async with contextlib.AsyncExitStack() as stack:
            if process is None:
                async with self._gate:
                    process = await self._starter.start()
                    stack.push_async_callback(self._leave, process)
                    await self._boot(process)
            else:
                stack.push_async_callback(self._leave, process)
                assert process.stdin
                process.stdin.write(_frame(self.greeting))
            assert process.stdin

            async def beat(pipe: asyncio.StreamWriter) -> None:
                while self._heartbeat:
                    await asyncio.sleep(self._heartbeat)
                    pipe.write(_frame(requests.Ping()))

            beats = asyncio.create_task(beat(process.stdin))
            stack.callback(beats.cancel)
            return await self._read_frames(process)
        raise AssertionError  # unreachable: the stack suppresses no exception

    async def _boot(self, process: Bridge) -> None:
        assert process.stderr
        complaints = asyncio.create_task(read_tail(process.stderr))
        self._complaints.add(complaints)
        complaints.add_done_callback(self._complaints.discard)
        try:
            await self._starter.boot(process, _frame(self.greeting), complaints)
        except BootError as error:
            self._is_silent = error.is_silent
            raise

    async def _leave(self, process: Bridge) -> None:
        self._process = None
        if not self._released:
            await wait_gone(process, is_silent=self._is_silent)
            self._has_closed = self.closing and process.returncode == 0
        for complaints in tuple(self._complaints):
            complaints.cancel()

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        """Returns the next data. Raises TimeoutError if there is none for too long."""
        limit = (MISSED_BEATS * self._heartbeat if self._is_up else self._boot_timeout) if self._heartbeat else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                return await stream.read(CHUNK)
        async with asyncio.timeout(LAST_CHANCE):
            return await stream.read(CHUNK)

    async def _read_frames(self, process: Bridge) -> str:
        assert process.stdout
        frames = FrameBuffer()
        while True:
            try:
                data = await self._read(process.stdout)
            except TimeoutError:
                self._is_silent = True
                return f"no message came from it for {MISSED_BEATS * self._heartbeat:g} s"
            if not data:
                self._was_killed = True
                break
            try:
                messages = frames.feed(data)
            except (ValueError, RecursionError) as error:
                return f"it sent an invalid frame: {error}"
            for message in messages:
                try:
                    if self._take(process, message):
                        return "its bridge ended"
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                    # A node may be faulty.
                    return f"it sent an invalid message: {type(error).__name__}: {error}"
        return "its agent closed the connection"

    def _take(self, process: Bridge, message: object) -> bool:
        """Handles a message. Raises ValueError if it is invalid, and BootError if the agent refuses this run. Returns whether it is the last one."""
        news = reports.read_report(message)
        if news is None:
            kind = str(message.get("type")) if isinstance(message, dict) else ""
            if kind not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
                self._unknown.add(kind)
                note(f"{self.node}: unknown message {kind!r}")
            return False
        if isinstance(news, reports.Refused):
            ended = ended_words("its agent ended again and again", news.status, news.reason, news.log)
            raise BootError(self._starter.explain(EXIT_FAILED, news.reason, ended if news.log else None))
        if isinstance(news, reports.BridgeEnded):
            self._is_silent = True  # the step ends with the agent, so there is nothing to wait for
            return True
        if isinstance(news, reports.Hello):
            self._process = process
            self._is_up, self._up_since = True, asyncio.get_running_loop().time()
            if self.closing:
                self.send(requests.Close(keep=self._keep))
        self._on_news(news)
        return False

    async def release(self) -> Bridge | None:
        """Detaches from the agent, which continues. Returns the open connection to it, for another link; None if there is none."""
        process = self._process
        self._released = process is not None
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        return process

    def drop(self) -> None:
        """Ends this link's work without asking the agent, which is gone."""
        if self._task is not None:
            self._task.cancel()

    async def wait_closed(self) -> None:
        """Waits for the end of this link's work."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _frame(request: requests.Request) -> bytes:
    return encode_frame(requests.write_request(request))
