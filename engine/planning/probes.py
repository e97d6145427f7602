"""Probes on nodes: starts them with the node's launcher, asks questions, and always ends them."""

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec

from engine.core.failures.ssh import EXIT_LAUNCHER, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, explain
from engine.core.plan.plan import PlannedNode, Reach
from engine.gate import Permit
from engine.launchers import LAUNCHERS, bundle
from engine.launchers.noise import skip_noise
from engine.launchers.setup import setup_input
from engine.node.agent import wire
from engine.node.probe.channel import SYNC

PROGRAM = bundle.compressed("probe", "serve:main")  # the probe, as the boot command takes it
LAST_WORDS = 1 << 13  # bytes that are kept from the end of the command's standard error
END_TIME = 2.0  # seconds for a probe to exit after its stdin is closed, and for a killed process to be gone

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ProbeError(Exception):
    """A probe can't be started, or stopped answering. `fact`: what is wrong, in one line. `hint`: the next step; may be empty.
    `is_reached`: whether the node was reachable."""

    def __init__(self, fact: str, hint: str, *, is_reached: bool) -> None:
        super().__init__(fact)
        self.fact, self.hint, self.is_reached = fact, hint, is_reached


class Probe:
    """A running probe. `process`: the command of the node's launcher. `seconds`: how long the probe took to start."""

    def __init__(self, process: asyncio.subprocess.Process, seconds: float) -> None:
        self._process = process
        self.seconds = seconds

    async def ask(self, question: str, answer: type[Answer], **details: object) -> Answer:
        """Asks one question and waits for the answer. `question`: its name in `engine.node.probe`. `answer`: the type of the answer.
        `details`: parameters of the question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(wire.encode_frame({"ask": question, **details}))
        (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
        if size > wire.MAX_FRAME:
            raise msgspec.DecodeError(f"an answer of {size} bytes")
        return msgspec.json.decode(await self._process.stdout.readexactly(size), type=answer)


@contextlib.asynccontextmanager
async def probe_on(
    node: PlannedNode, reach: Reach, python: Sequence[str], seconds: float, permit: Permit
) -> AsyncIterator[Probe]:
    """A probe on a node, ready for questions. It ends with the context. `python`: the words that start the Python of the ranks. `seconds`:
    how long the probe may take to start. Raises NotTrustedError: it may not start; ProbeError: it can't be started, or died during a
    question."""
    boot = [*python, "-I", "-c", bundle.BOOT, str(len(PROGRAM))]
    began = asyncio.get_running_loop().time()
    permit.admit(*python, reach.setup, *reach.ssh_options)
    process = await _started(node, LAUNCHERS[node.transport](node.name, boot, reach), reach, python, permit)
    said = bytearray()
    listening = asyncio.create_task(_keep_last_words(process, said))
    grace = 0.0
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(setup_input(reach.setup) + PROGRAM)
        try:
            async with asyncio.timeout(seconds):
                await skip_noise(process.stdout, SYNC)
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
        hint = "make its login scripts print nothing when there is no terminal"
        raise ProbeError(f"its answer is not valid: {error}", hint, is_reached=True) from None
    finally:
        await _end(process, grace)
        listening.cancel()


async def _started(
    node: PlannedNode, argv: list[str], reach: Reach, python: Sequence[str], permit: Permit
) -> asyncio.subprocess.Process:
    """Starts the command in its own session, so it can't ask on the user's terminal, and can be killed with its children."""
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            executable=permit.program(argv[0]),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            cwd=permit.cwd,
        )
    except OSError as error:
        status = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        trouble = _trouble(node, reach, python, status, f"can't start {argv[0]}: {error.strerror}".encode())
        trouble.is_reached = node.transport == "local"
        raise trouble from None


async def _keep_last_words(process: asyncio.subprocess.Process, said: bytearray) -> None:
    """Reads standard error, so that the command never blocks on it, and keeps the end."""
    assert process.stderr is not None
    while data := await process.stderr.read(1 << 16):
        said += data
        del said[:-LAST_WORDS]


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """Closes the command's stdin, at which it exits; kills it otherwise, and reaps it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, signal.SIGTERM)  # srun then ends the probe; a killed srun would not
                async with asyncio.timeout(END_TIME):
                    await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a child in another session may keep a pipe open; do not wait for it
        async with asyncio.timeout(END_TIME):
            await process.wait()


def _trouble(
    node: PlannedNode, reach: Reach, python: Sequence[str], status: int | None, said: bytes | bytearray
) -> ProbeError:
    """The reason why a command does not answer, or ended with this status."""
    is_reached = node.transport == "local" or status not in (EXIT_LAUNCHER, None)
    trouble = explain(
        node.name,
        status=status,
        said=bytes(said),
        python=python[-1],
        setup=bool(reach.setup),
        transport=node.transport,
        job=reach.slurm_job,
        wrapped=is_reached and len(python) > 1,
    )
    return ProbeError(trouble.fact, trouble.hint, is_reached=is_reached)
