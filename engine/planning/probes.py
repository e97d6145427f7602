"""A probe on a node, from here: started by the node's launcher, asked, and ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.core.failures.ssh import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_SSH, explain
from engine.core.plan.plan import PlannedNode, Reach
from engine.launchers import LAUNCHERS
from engine.launchers.setup import setup_input
from engine.node import bundle, probe
from engine.node.agent import wire

PROGRAM = zlib.compress(Path(probe.__file__).read_bytes(), 9)
"""The probe, as the boot command takes it."""

NOISE = 1 << 20
"""Bytes of login noise before the probe's first word after which nothing sensible is expected any more."""

LAST_WORDS = 1 << 13
"""Bytes that are kept of the newest that the command has written to its standard error."""

END_TIME = 2.0
"""Seconds for a probe to end once its stdin has, and for what was killed to be gone."""

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ProbeError(Exception):
    """A probe can't be started, or does not answer any more.

    Args:
        fact: what is the matter, in a line.
        advice: the next step; may be empty.
        is_reached: whether the node itself could be reached.
    """

    def __init__(self, fact: str, advice: str, *, is_reached: bool) -> None:
        super().__init__(fact)
        self.fact, self.advice, self.is_reached = fact, advice, is_reached


class Probe:
    """A probe that has said its first word.

    Args:
        process: the command of the node's launcher.
        seconds: that it took to answer.
    """

    def __init__(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        self._process = process
        self.seconds = seconds

    async def ask(self, question: str, answer: type[Answer], **details: object) -> Answer:
        """Asks, and waits for the answer. One question at a time.

        Args:
            question: a word that `engine.node.probe` knows.
            answer: what comes back.
            details: what belongs to the question.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(wire.encode_frame({"ask": question, **details}))
        (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
        if size > wire.MAX_FRAME:
            raise msgspec.DecodeError(f"an answer of {size} bytes")
        return msgspec.json.decode(await self._process.stdout.readexactly(size), type=answer)


@contextlib.asynccontextmanager
async def probe_on(node: PlannedNode, reach: Reach, python: str, seconds: float) -> AsyncIterator[Probe]:
    """A probe on a node, ready to be asked. It is gone afterwards.

    Args:
        node: where.
        reach: what the user wants of every connection.
        python: that ranks would run under.
        seconds: for its first word.

    Raises:
        ProbeError: it can't be started, or went away while it was asked.
    """
    boot = [python, "-I", "-c", bundle.BOOT, str(len(PROGRAM))]
    began = asyncio.get_running_loop().time()
    process = await _started(node, LAUNCHERS[node.transport].argv(node.name, boot, reach), reach, python)
    said = bytearray()
    listening = asyncio.create_task(_keep_last_words(process, said))
    grace = 0.0
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(setup_input(reach.setup) + PROGRAM)
        try:
            async with asyncio.timeout(seconds):
                await process.stdout.readuntil(probe.SYNC)
        except TimeoutError:
            raise _trouble(node, reach, python, None, said) from None
        yield Probe(process, asyncio.get_running_loop().time() - began)
        grace = END_TIME
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIME):
                await asyncio.wait([listening])
                await process.wait()
        printed = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
        raise _trouble(node, reach, python, process.returncode, printed + said) from None
    except (asyncio.LimitOverrunError, msgspec.DecodeError) as error:
        advice = "what do its login scripts print? They should be silent without a terminal"
        raise ProbeError(f"what it says makes no sense: {error}", advice, is_reached=True) from None
    finally:
        await _end(process, grace)
        listening.cancel()


async def _started(node: PlannedNode, argv: list[str], reach: Reach, python: str) -> asyncio.subprocess.Process:
    """The command, in a session of its own: it can't ask on the user's terminal, and is ended with all that it starts."""
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, limit=NOISE, start_new_session=True
        )
    except OSError as error:
        status = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        trouble = _trouble(node, reach, python, status, f"can't start {argv[0]}: {error.strerror}".encode())
        trouble.is_reached = node.transport == "local"
        raise trouble from None


async def _keep_last_words(process: asyncio.subprocess.Process, said: bytearray) -> None:
    """Reads what the command complains of, so that it never waits for somebody who does."""
    assert process.stderr is not None
    while data := await process.stderr.read(1 << 16):
        said += data
        del said[:-LAST_WORDS]


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """Lets the command end by itself, which it does once its stdin has; kills it where it does not, and reaps it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # what left the session may keep a pipe open: it is not waited for
        async with asyncio.timeout(END_TIME):
            await process.wait()


def _trouble(node: PlannedNode, reach: Reach, python: str, status: int | None, said: bytes | bytearray) -> ProbeError:
    """Why a command does not answer, or has ended with that status."""
    trouble = explain(node.name, status=status, said=bytes(said), python=python, setup=bool(reach.setup))
    is_reached = node.transport == "local" or status not in (EXIT_SSH, None)
    return ProbeError(trouble.fact, trouble.advice, is_reached=is_reached)
