"""Connects to supervisors over the socket of their run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading

import msgspec

from engine import __version__
from engine.core.errors import OtherVersionError, SupervisorError
from engine.core.plan.plan import Reach
from engine.core.views.view import PROTOCOL
from engine.core.wire.front_end import Hello, Refused, Reply, Request, Welcome
from engine.launchers import LAUNCHERS
from engine.launchers.noise import skip_noise
from engine.linux.sockets import peer_of
from engine.runs.paths import RunPaths
from engine.runs.record import JobPlace, place_elsewhere, socket_of

MAX_LINE = 1 << 28  # bytes of the longest line from a supervisor: a snapshot with the curves of thousands of ranks

MARK = b"\0RANKDECK-RELAY 1\n"

RELAY = """
import os, select, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
os.write(1, b"\\0RANKDECK-RELAY 1\\n")
while True:
    for one in select.select([0, link], [], [])[0]:
        data = os.read(0, 65536) if one == 0 else link.recv(65536)
        if not data:
            sys.exit()
        if one == 0:
            link.sendall(data)
        while one != 0 and data:
            data = data[os.write(1, data):]
"""
"""Connects the standard input and output of a step with a socket of its node, after `MARK`."""

STOPPED_CHECK = 1.0  # seconds without a message after which a client looks whether the supervisor is stopped
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def _step(place: JobPlace, path: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A socket that a step of a job connects with the supervisor's socket on its node, and the command that starts the step. The step ends when the socket
    is closed. PBS starts nothing in a job from outside, so ssh does."""
    launcher = LAUNCHERS["slurm" if place.scheduler == "slurm" else "ssh"]
    argv = launcher(place.node, [sys.executable, "-I", "-c", RELAY, path], Reach(slurm_job=place.job))
    ours, theirs = socket.socketpair()
    with theirs:  # asyncio would kill srun at the end of this process, and leave the step behind
        ends = theirs.fileno()
        step = subprocess.Popen(
            argv, env={**os.environ}, stdin=ends, stdout=ends, stderr=subprocess.DEVNULL, start_new_session=True
        )
    threading.Thread(target=step.wait, name=f"srun {step.pid}", daemon=True).start()  # or it would stay as a zombie
    return ours, step


class Connection:
    """One connection to a supervisor, after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._process = 0
        """Pid of the supervisor, if it is on this machine; else 0."""
        self.pid = 0

    @classmethod
    async def open(cls, paths: RunPaths) -> Connection:
        """Connects: over the supervisor's socket, or by a step of the job in which the supervisor runs on another host. Raises ConnectionError: no
        process listens; SupervisorError: the supervisor refuses the connection."""
        path = socket_of(paths)
        if (place := place_elsewhere(paths)) is not None:
            ours, step = _step(place, path)
            connection = cls(*await asyncio.open_connection(sock=ours, limit=MAX_LINE))
            try:
                with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await skip_noise(connection._reader, MARK)
            except asyncio.CancelledError:
                step.terminate()  # srun waits until the job is resumed
                raise
            await connection._greet(paths)
            return connection
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
        except (FileNotFoundError, ConnectionError) as error:
            raise ConnectionError(str(error)) from None
        connection = cls(reader, writer)
        if peer_of(writer.get_extra_info("socket"))[1] != os.geteuid():
            connection.close()
            raise SupervisorError(f"the socket of run {paths.run} belongs to another user", hint=f"remove it: {path}")
        connection._process = peer_of(writer.get_extra_info("socket"))[0]
        connection.pid = (await connection._greet(paths)).pid
        return connection

    async def _greet(self, paths: RunPaths) -> Welcome:
        """The handshake. Returns what the supervisor says of itself."""
        self.write(Hello(protocol=PROTOCOL, version=__version__))
        welcome = await self.read()
        if welcome is None:
            self.close()
            raise ConnectionError("it closed the connection")
        if not isinstance(welcome, Welcome):
            self.close()
            if isinstance(welcome, Refused) and welcome.version:
                raise OtherVersionError(
                    f"{paths.run} runs with rankdeck {welcome.version}, which rankdeck {__version__} can't talk to",
                    hint=f"rankdeck stop --now {paths.run} ends the run; or use the rankdeck that launched it",
                )
            reason = welcome.reason if isinstance(welcome, Refused) else "unexpected reply"
            raise SupervisorError(f"the supervisor of {paths.run} refuses this connection: {reason}")
        return welcome

    def write(self, message: Hello | Request) -> None:
        """Sends one line."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def read(self) -> Reply | None:
        """The next line, or None at the end.

        A supervisor that a signal has stopped is ended, so that another one takes its place: its guards may have been killed.
        """
        reading, watch = asyncio.ensure_future(self._reader.readline()), None
        try:
            while not (await asyncio.wait([reading], timeout=STOPPED_CHECK))[0]:
                from engine.linux.processes import StoppedWatch  # most messages come at once

                watch = watch or StoppedWatch()
                watch.look({self._process})
            line = reading.result()
            return _replies.decode(line) if line.endswith(b"\n") else None
        except ConnectionError:
            return None
        except msgspec.DecodeError as error:
            raise SupervisorError(f"the supervisor sent an invalid message: {error}") from None
        finally:
            reading.cancel()

    async def ask(self, request: Request) -> Reply | None:
        """Sends a request, and closes the connection after the answer, which is None where there was none."""
        try:
            self.write(request)
            return await self.read()
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()
