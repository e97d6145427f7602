"""The link to one node's agent: boots it or finds it, speaks frames with it, and comes back when the link breaks.

The same for every launcher: a command whose stdin takes the agent's source and then frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.core.failures.ssh import Trouble
from engine.node import agent

BOOT_TIMEOUT = 30.0
"""Seconds for a Python to start and say its first word: a node with a cold file system needs several."""

RETRIES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each try to reconnect; the last one repeats. The first is at once: an agent that was killed is back in ms."""

SETUP_TIMEOUT = 120.0
"""The same with lines of the user's before it: modules and conda on a cold file system."""

BUSY_PATIENCE = 60.0
"""Seconds in which a first connection is tried again that was refused by a server that is only busy, as sshd is with many at once
(MaxStartups 10:30:100)."""

STEADY = 10.0
"""Seconds that a link must have held for the next break to be taken for a single one."""

LAST_CHANCE = 1.0
"""Seconds to read what lies there already, where this process was stopped itself for longer than a heartbeat."""

FAN_OUT = 32
"""Connections that are being opened at one time."""

CHUNK = 1 << 16
Bridge = asyncio.subprocess.Process
"""The command that a node's launcher runs: frames go in and out of it."""

AgentMessage = dict[str, Any]
"""What an agent says: JSON of the protocol that `engine.node.agent` speaks."""


class BootError(Exception):
    """An agent could not be started.

    Args:
        reason: one line.
        is_busy: it may work in a moment.
    """

    def __init__(self, reason: str, *, is_busy: bool = False) -> None:
        super().__init__(reason)
        self.is_busy = is_busy


class Link:
    """Keeps one node connected.

    Args:
        tasks: the link's work runs in there.
        node: its name.
        argv: the command that boots an agent.
        hello: the first frame; it names the run.
        on_message: called with every message of the agent, its hello first.
        on_down: called with the reason when an open link breaks.
        on_failed: called with the reason when the node is given up.
        on_closed: called when the agent has ended because `close` asked it to.
        explain: tells a failed start in words, from the exit status of the command (None: it said nothing in time) and its errors.
        gate: bounds how many links are being opened at one time.
        heartbeat: seconds between two signs of life on the link, of which it may miss a few; 0: it breaks by itself when it must.
        boot_timeout: seconds until the agent's first word.
        bridge: that another link has let go of, to an agent that listens; or None: one is started.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        node: str,
        argv: list[str],
        hello: AgentMessage,
        *,
        on_message: Callable[[AgentMessage], None],
        on_down: Callable[[str], None],
        on_failed: Callable[[str], None],
        on_closed: Callable[[], None],
        explain: Callable[[int | None, str], Trouble],
        gate: asyncio.Semaphore,
        heartbeat: float = 0.0,
        boot_timeout: float = BOOT_TIMEOUT,
        bridge: Bridge | None = None,
    ) -> None:
        self.node = node
        self._tasks = tasks
        self._argv, self.hello = argv, hello
        self._boot_timeout = boot_timeout
        self._on_message, self._on_down, self._on_failed, self._on_closed = on_message, on_down, on_failed, on_closed
        self._explain, self._gate, self._heartbeat = explain, gate, heartbeat
        self._patience = self._down_since = self._up_since = 0.0
        self._bridge = bridge
        self._process: Bridge | None = None
        self._released = False
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._is_up = self._is_silent = self._has_closed = self._keep = False
        self._complaints: set[asyncio.Task[bytes]] = set()

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

    def send(self, **message: Any) -> None:
        """Sends a message; without a link it is dropped, since the state machine asks again once there is one."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(agent.encode_frame(message))

    def close(self, *, keep: bool = False) -> None:
        """Asks the agent to end. While the link is being opened this waits for it: a half-born agent could stay behind.

        Args:
            keep: it leaves its files where they are.
        """
        is_news = not self._closing or (keep and not self._keep)
        self._closing, self._keep = True, keep or self._keep
        if is_news:  # an agent that has left because of the first can't take a second
            self.send(type="close", keep=self._keep)

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
                tries = 0 if loop.time() - self._up_since > STEADY else tries + 1
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
                    process = await self._start_bridge()
                    stack.push_async_callback(self._leave, process)
                    await self._boot(process)
            else:
                stack.push_async_callback(self._leave, process)
                self._greet(process)
            beats = asyncio.create_task(self._beat(process))
            stack.callback(beats.cancel)
            return await self._read_frames(process)
        raise AssertionError  # a stack that swallows nothing is left by what is above

    def _greet(self, process: Bridge) -> None:
        assert process.stdin
        process.stdin.write(agent.encode_frame(self.hello))

    async def _boot(self, process: Bridge) -> None:
        assert process.stdin
        assert process.stderr
        complaints = asyncio.create_task(_read_tail(process.stderr))
        self._complaints.add(complaints)
        complaints.add_done_callback(self._complaints.discard)
        process.stdin.write(PROGRAM)
        self._greet(process)
        await self._wait_for_sync(process, complaints)

    async def _leave(self, process: Bridge) -> None:
        self._process = None
        if not self._released:
            await self._wait_gone(process)
            self._has_closed = self._closing and process.returncode == 0
        for complaints in tuple(self._complaints):
            complaints.cancel()

    async def _beat(self, process: Bridge) -> None:
        """Says that this side is there, for as long as the link is."""
        assert process.stdin
        while self._heartbeat:
            await asyncio.sleep(self._heartbeat)
            process.stdin.write(agent.encode_frame({"type": "ping"}))

    async def _start_bridge(self) -> Bridge:
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise BootError(self._explain(127, f"can't start {self._argv[0]}: {error.strerror}").text) from None

    async def _wait_gone(self, process: Bridge) -> None:
        """Lets the bridge end by itself, which it does once its wire is closed; one that does not is killed."""
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(0.1 if self._is_silent else 5):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with an ssh to a jump host, which would hold the pipes open
            await process.wait()

    async def _wait_for_sync(self, process: Bridge, complaints: asyncio.Task[bytes]) -> None:
        """Reads past whatever a login shell prints, up to the agent's first word."""
        assert process.stdout
        try:
            async with asyncio.timeout(self._boot_timeout):
                await process.stdout.readuntil(agent.SYNC)
        except TimeoutError:
            self._is_silent = True
            raise BootError(self._explain(None, "").text) from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            printed = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await process.wait()
                    said = (printed + await complaints).decode(errors="replace")  # `nologin` speaks to standard output
                    trouble = self._explain(process.returncode, said)
                    raise BootError(trouble.text, is_busy=trouble.retry) from None
            raise BootError(f"{self._argv[0]} did not start an agent") from None

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        """What comes next. Raises TimeoutError where nothing does for too long."""
        limit = (agent.MISSED * self._heartbeat if self._is_up else self._boot_timeout) if self._heartbeat else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                return await stream.read(CHUNK)
        async with asyncio.timeout(LAST_CHANCE):
            return await stream.read(CHUNK)

    async def _read_frames(self, process: Bridge) -> str:
        assert process.stdout
        frames = agent.FrameBuffer()
        while True:
            try:
                data = await self._read(process.stdout)
            except TimeoutError:
                self._is_silent = True
                return f"nothing was heard of it for {agent.MISSED * self._heartbeat:g} s"
            if not data:
                break
            try:
                messages = frames.feed(data)
            except (ValueError, RecursionError) as error:
                return f"it sent what is no frame: {error}"
            for message in messages:
                if not isinstance(message, dict):
                    return "it sent what is no message"
                if message.get("type") == "refused":
                    raise BootError(self._explain(agent.EXIT_FAILED, str(message.get("reason"))).text)
                if message.get("type") == "hello":
                    self._process = process
                    self._is_up, self._up_since = True, asyncio.get_running_loop().time()
                    if self._closing:
                        self.send(type="close", keep=self._keep)
                try:
                    self._on_message(message)
                except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
                    # A node is not trusted to be well.
                    return f"it sent what makes no sense: {type(error).__name__}: {error}"
        return "its agent went away"

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


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    """The last bytes of what a command complains about, however much there was before."""
    tail = b""
    while data := await stream.read(CHUNK):
        tail = (tail + data)[-CHUNK:]
    return tail


PROGRAM = zlib.compress(Path(agent.__file__).read_bytes(), 9)
"""The agent, as its boot command takes it."""


def boot_command(python: str) -> list[str]:
    """The command whose stdin takes `PROGRAM` and then frames, and whose stdout gives them.

    `-I`: the user's PYTHONPATH is for ranks; a `socket.py` that stands on it must not stop the agent.
    """
    return [python, "-I", "-c", agent.BOOT, str(len(PROGRAM))]
