"""The command that boots an agent on a node, or connects to a running one, for every launcher. Its stdin takes a program, then frames."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from functools import cache

from engine.core.failures.ssh import Trouble
from engine.installed import ROOT
from engine.launchers import bundle
from engine.launchers.noise import skip_noise
from engine.node.agent.wire import SYNC

BOOT_TIMEOUT = 30.0  # Seconds for Python to start and print its sync line. A cold file system needs several.
SETUP_TIMEOUT = 120.0  # the same limit if the user's `launch.setup` runs first: modules and conda on a cold file system
END_TIMEOUT, SILENT_END_TIMEOUT = 5.0, 0.1  # seconds to end after its stdin is closed; the second if it was silent
LAST_WORDS_TIMEOUT = 2.0  # seconds for exit status and errors of a command that failed to start an agent
CHUNK = 1 << 16  # bytes that are read at a time, and kept of the command's errors
Bridge = asyncio.subprocess.Process  # its local end: Python on this machine, ssh and so on, which boots it


@cache
def agent_program() -> bytes:
    """Returns the agent, in the form that its boot command reads."""
    return bundle.compressed("agent", "bridge:boot")


def boot_command(python: str) -> list[str]:
    """Returns the command whose stdin takes `agent_program` and then frames.

    `-I`, because the user's PYTHONPATH is for ranks: a `socket.py` in it would break the agent. `-S`, because it needs no installed package,
    and what is installed may run code at each start of Python.
    """
    return [python, "-I", "-S", "-c", bundle.BOOT, str(len(agent_program()))]


def boot_here(python: str) -> list[str]:
    """Returns the command whose stdin takes frames, on a machine that has rankdeck: compiled modules take half the time."""
    return [python, "-I", "-S", "-c", bundle.BOOT_HERE, str(ROOT)]


class BootError(Exception):
    """An agent could not be started. `trouble`: why. `is_silent`: the command printed nothing in time. `was_killed`: a signal ended it."""

    def __init__(self, trouble: Trouble, *, is_silent: bool = False, was_killed: bool = False) -> None:
        super().__init__(trouble.text)
        self.trouble, self.is_silent, self.was_killed = trouble, is_silent, was_killed


class Starter:
    """Starts bridges to one node.

    Args:
        argv: the command that boots an agent.
        explain: describes a failure from the command's exit status (None: it printed nothing in time) and its errors.
        timeout: seconds until the agent's sync line.
        preamble: input for the command before the first frame, such as the agent.
    """

    def __init__(self, argv: list[str], explain: Callable[..., Trouble], timeout: float, preamble: bytes) -> None:
        self._argv, self._timeout, self._preamble = argv, timeout, preamble
        self.explain = explain

    async def start(self) -> Bridge:
        """Starts the command. Raises BootError."""
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise BootError(self.explain(127, f"can't start {self._argv[0]}: {error.strerror}")) from None

    async def boot(self, process: Bridge, greeting: bytes, complaints: asyncio.Task[bytes]) -> None:
        """Sends the agent, and skips output of login shells up to the sync line.

        Args:
            process: the command.
            greeting: the first frame.
            complaints: reads its stderr, see `read_tail`.

        Raises:
            BootError: no agent started.
        """
        assert process.stdin
        assert process.stdout
        process.stdin.write(self._preamble)
        process.stdin.write(greeting)
        try:
            async with asyncio.timeout(self._timeout):
                await skip_noise(process.stdout, SYNC)
        except TimeoutError:
            raise BootError(self.explain(None, ""), is_silent=True) from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            printed = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_TIMEOUT):
                    await process.wait()
                    said = (printed + await complaints).decode(errors="replace")  # `nologin` prints to stdout
                    was_killed = process.returncode is not None and process.returncode < 0
                    raise BootError(self.explain(process.returncode, said), was_killed=was_killed) from None
            fact, hint = f"{self._argv[0]} did not start an agent", "it has closed its output, and goes on"
            raise BootError(Trouble(fact=fact, hint=hint)) from None


async def wait_gone(process: Bridge, *, is_silent: bool) -> None:
    """Closes a bridge's stdin, which ends it; kills it if it does not end. `is_silent`: the node has been silent, so the wait is short."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(SILENT_END_TIMEOUT if is_silent else END_TIMEOUT):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too: an ssh to a jump host would keep the pipes open
        await process.wait()


async def read_tail(stream: asyncio.StreamReader) -> bytes:
    tail = b""
    while data := await stream.read(CHUNK):
        tail = (tail + data)[-CHUNK:]
    return tail
