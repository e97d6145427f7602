"""The link to one node's agent: boots it or finds it, speaks frames with it, and comes back when the link breaks.

The same for every launcher: a command whose stdin takes the agent's source and then frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.node import agent

BOOT_TIMEOUT = 30.0
"""Seconds for a Python to start and say its first word: a node with a cold file system needs several."""

RETRIES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each try to reconnect; the last one repeats. The first is at once: an agent that was killed is back in ms."""

CHUNK = 1 << 16
Bridge = asyncio.subprocess.Process
"""The command that a node's launcher runs: frames go in and out of it."""

AgentMessage = dict[str, Any]
"""What an agent says: JSON of the protocol that `engine.node.agent` speaks."""


class BootError(Exception):
    """An agent could not be started: one line of fact."""


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
        patience: seconds to go on trying once a link was open: as long as the agent keeps its ranks alone.
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
        patience: float,
        bridge: Bridge | None = None,
    ) -> None:
        self.node = node
        self._tasks = tasks
        self._argv, self._hello = argv, hello
        self._on_message, self._on_down, self._on_failed, self._on_closed = on_message, on_down, on_failed, on_closed
        self._patience = patience
        self._bridge = bridge
        self._process: Bridge | None = None
        self._released = False
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._is_up = False
        self._was_up = False

    def open(self) -> None:
        """Starts connecting; the outcome comes by the callbacks. A link that broke is connecting again already."""
        if self._task is None or self._task.done():
            self._was_up = self._closing = False
            self._task = self._tasks.create_task(self._connect_and_serve(), name=f"link {self.node}")

    def send(self, **message: Any) -> None:
        """Sends a message; without a link it is dropped, since the state machine asks again once there is one."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(agent.encode_frame(message))

    def close(self) -> None:
        """Asks the agent to end. While the link is being opened this waits for it: a half-born agent could stay behind."""
        self._closing = True
        self.send(type="close")

    async def _connect_and_serve(self) -> None:
        """Connects, and connects again, until the agent was asked to end or the node is given up."""
        loop = asyncio.get_running_loop()
        down_since, tries = loop.time(), 0
        while True:
            await asyncio.sleep(RETRIES[min(tries, len(RETRIES) - 1)])
            self._is_up, was_taken_over = False, self._bridge is not None
            try:
                reason = await self._serve()
            except BootError as error:
                reason = str(error)
            if self._is_up and not self._closing:
                down_since, tries = loop.time(), 0
                self._on_down(reason)
                continue
            if was_taken_over and not self._is_up:
                continue  # it ended on the way here: another is started
            tries += 1
            if not self._is_up and self._was_up and loop.time() - down_since < self._patience:
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
        is_new = process is None
        if process is None:
            process = await self._start_bridge()
        assert process.stdin
        assert process.stderr
        complaints = asyncio.create_task(process.stderr.read(CHUNK))
        try:
            if is_new:
                process.stdin.write(_SOURCE)
            process.stdin.write(agent.encode_frame(self._hello))
            if is_new:
                await self._wait_for_sync(process, complaints)
            return await self._read_frames(process)
        finally:
            self._process = None
            if not self._released:
                await self._wait_gone(process)
            complaints.cancel()

    async def _start_bridge(self) -> Bridge:
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise BootError(f"can't start {self._argv[0]}: {error.strerror}") from None

    @staticmethod
    async def _wait_gone(process: Bridge) -> None:
        """Lets the bridge end by itself, which it does once its wire is closed; one that does not is killed."""
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _wait_for_sync(self, process: Bridge, complaints: asyncio.Task[bytes]) -> None:
        """Reads past whatever a login shell prints, up to the agent's first word."""
        assert process.stdout
        try:
            async with asyncio.timeout(BOOT_TIMEOUT):
                await process.stdout.readuntil(agent.SYNC)
        except TimeoutError:
            raise BootError(f"no answer within {BOOT_TIMEOUT:g} s") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await process.wait()
                    said = (await complaints).decode(errors="replace").strip().splitlines()
                    raise BootError(said[-1] if said else f"{self._argv[0]} ended with {process.returncode}") from None
            raise BootError(f"{self._argv[0]} did not start an agent") from None

    async def _read_frames(self, process: Bridge) -> str:
        assert process.stdout
        frames = agent.FrameBuffer()
        while data := await process.stdout.read(CHUNK):
            try:
                messages = frames.feed(data)
            except ValueError as error:
                return f"it sent what is no frame: {error}"
            for message in messages:
                if message["type"] == "refused":
                    raise BootError(message["reason"])
                if message["type"] == "hello":
                    self._process = process
                    self._is_up = self._was_up = True
                self._on_message(message)
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


_SOURCE = Path(agent.__file__).read_bytes()


def source_size() -> int:
    """Bytes of the agent's source, which its boot command must know."""
    return len(_SOURCE)
