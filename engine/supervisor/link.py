"""The link to one node's agent: exchanges frames with it, and connects again when the connection breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import msgspec

from engine.core.failures.ssh import Trouble
from engine.core.wire import agent as wire
from engine.node.agent.wire import EXIT_FAILED, MISSED_BEATS, FrameBuffer, encode_frame
from engine.supervisor.bridge import BOOT_TIMEOUT, CHUNK, BootError, Bridge, Starter, read_tail, wait_gone
from engine.supervisor.log import note

RETRIES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each try to reconnect; the last one repeats. The first is at once: an agent that was killed is back in ms."""

BUSY_PATIENCE = 60.0
"""Seconds in which a first connection is tried again that was refused by a server that is only busy, as sshd is with many at once
(MaxStartups 10:30:100)."""

STEADY_TIME = 10.0
"""Seconds that a connection must have held for the next break to count as the first again."""

LAST_CHANCE = 1.0
"""Seconds to read what has arrived already, where this process was stopped itself for longer than a heartbeat."""

FAN_OUT = 32
"""Connections that are being opened at one time."""

MAX_UNKNOWN = 16
"""Unknown types of messages that are noted in the log, each once."""


class Link:
    """Keeps one node connected.

    Args:
        tasks: the link's work runs in there.
        node: its name.
        argv: the command that boots an agent.
        greeting: the first frame; it names the run.
        on_news: called with everything that the agent sends, its Hello first. Raises ValueError for what can't be.
        on_down: called with the reason when an open link breaks.
        on_failed: called with the reason when the node is given up.
        on_closed: called when the agent has ended because `close` asked it to.
        explain: describes a failed start, from the exit status of the command (None: it printed nothing in time) and its errors.
        gate: bounds how many links are being opened at one time.
        heartbeat: seconds between two messages at most, of which a few may be missed; 0: the connection breaks by itself.
        boot_timeout: seconds until the agent's sync line.
        bridge: one that another link has released, to an agent that listens; None: start one.
        preamble: what the command expects on its stdin before the agent.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        node: str,
        argv: list[str],
        greeting: wire.Greeting,
        *,
        on_news: Callable[[wire.AnyReport], None],
        on_down: Callable[[str], None],
        on_failed: Callable[[str], None],
        on_closed: Callable[[], None],
        explain: Callable[[int | None, str], Trouble],
        gate: asyncio.Semaphore,
        heartbeat: float = 0.0,
        boot_timeout: float = BOOT_TIMEOUT,
        bridge: Bridge | None = None,
        preamble: bytes = b"",
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
        self._closing = False
        self._is_up = self._is_silent = self._has_closed = self._keep = False
        self._complaints: set[asyncio.Task[bytes]] = set()
        self._unknown: set[str] = set()
        """Types of messages that this supervisor does not know: an agent of another rankdeck sends them."""

    def open(self, patience: float) -> None:
        """Starts connecting; the outcome comes by the callbacks.

        Args:
            patience: seconds from now in which failures are not told, but tried again. Where a link that broke is connecting again
                already, only this changes.
        """
        self._patience, self._down_since = patience, asyncio.get_running_loop().time()
        if self._task is None or self._task.done():
            self._closing = self._has_closed = False
            self._task = self._tasks.create_task(self._connect_and_serve(), name=f"link {self.node}")

    def send(self, request: wire.Request) -> None:
        """Sends a request; without a connection it is dropped, since the state machine asks again once there is one."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(_frame(request))

    def remember_folder(self, folder: str) -> None:
        """Where to look for the agent at the next connection: a login may have another temporary folder."""
        self.greeting = msgspec.structs.replace(self.greeting, folder=folder)

    def close(self, *, keep: bool = False) -> None:
        """Asks the agent to end. While the link is being opened this waits for it: an agent that is booting would stay behind.

        Args:
            keep: it leaves its files where they are.
        """
        is_new = not self._closing or (keep and not self._keep)
        self._closing, self._keep = True, keep or self._keep
        if is_new:  # an agent that has left because of the first can't take a second
            self.send(wire.Close(keep=self._keep))

    async def _connect_and_serve(self) -> None:
        """Connects, and connects again, until the agent was asked to end or the node is given up."""
        loop = asyncio.get_running_loop()
        tries, begun = 0, loop.time()
        while True:
            await asyncio.sleep(RETRIES[min(tries, len(RETRIES) - 1)] * random.uniform(1.0, 1.5))
            self._is_up, self._is_silent, was_taken_over, is_busy = False, False, self._bridge is not None, False
            try:
                reason = await self._serve()
            except BootError as error:
                reason, is_busy = str(error), error.is_busy
            if self._is_up and not self._has_closed:
                tries = 0 if loop.time() - self._up_since > STEADY_TIME else tries + 1
                self._down_since = loop.time()
                self._on_down(reason)
                continue
            if was_taken_over and not self._is_up:
                continue  # it ended on the way here: another is started
            tries += 1
            if not self._is_up and (
                loop.time() - self._down_since < self._patience or (is_busy and loop.time() - begun < BUSY_PATIENCE)
            ):
                continue
            self._task = None  # whoever is called below may open the link anew
            if self._is_up:
                self._on_closed()
            else:
                self._on_failed(reason)
            return

    async def _serve(self) -> str:
        """One connection from boot to end. Returns why it ended; raises BootError where it never came up."""
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
            beats = asyncio.create_task(self._beat(process))
            stack.callback(beats.cancel)
            return await self._read_frames(process)
        raise AssertionError  # a stack that swallows nothing is left by what is above

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
            self._has_closed = self._closing and process.returncode == 0
        for complaints in tuple(self._complaints):
            complaints.cancel()

    async def _beat(self, process: Bridge) -> None:
        """Sends a ping now and then, as long as the connection is there."""
        assert process.stdin
        while self._heartbeat:
            await asyncio.sleep(self._heartbeat)
            process.stdin.write(_frame(wire.Ping()))

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        """What comes next. Raises TimeoutError where nothing does for too long."""
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
                return f"nothing was heard of it for {MISSED_BEATS * self._heartbeat:g} s"
            if not data:
                break
            try:
                messages = frames.feed(data)
            except (ValueError, RecursionError) as error:
                return f"it sent what is no frame: {error}"
            for message in messages:
                try:
                    self._take(process, message)
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                    # A node is not trusted to be well.
                    return f"it sent what makes no sense: {type(error).__name__}: {error}"
        return "its agent went away"

    def _take(self, process: Bridge, message: object) -> None:
        """Raises ValueError where the message does not fit, and BootError where the agent refuses this run."""
        news = wire.read_report(message)
        if news is None:
            kind = str(message.get("type")) if isinstance(message, dict) else ""
            if kind not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
                self._unknown.add(kind)
                note(f"{self.node}: unknown message {kind!r}")
            return
        if isinstance(news, wire.Refused):
            raise BootError(self._starter.explain(EXIT_FAILED, news.reason).text)
        if isinstance(news, wire.Hello):
            self._process = process
            self._is_up, self._up_since = True, asyncio.get_running_loop().time()
            if self._closing:
                self.send(wire.Close(keep=self._keep))
        self._on_news(news)

    @property
    def closing(self) -> bool:
        """Whether the agent was asked to end, or would have been if there had been a link."""
        return self._closing

    async def release(self) -> Bridge | None:
        """Lets go of the agent, which goes on without this link.

        Returns:
            The open connection to it, for another link; None where there is none.
        """
        process = self._process
        self._released = process is not None
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        return process

    async def wait_closed(self) -> None:
        """Returns when nothing of this link runs any more."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _frame(request: wire.Request) -> bytes:
    return encode_frame(wire.write_request(request))
