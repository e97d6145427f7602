"""Starts supervisors, and connects to them over the socket of their run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import msgspec

from engine import __version__
from engine.core.errors import SupervisorError
from engine.core.views.view import PROTOCOL
from engine.core.wire.front_end import Hello, Refused, Reply, Request, Welcome
from engine.installed import COMMAND
from engine.runs.paths import RunPaths, peer_user
from engine.runs.record import socket_of
from engine.runs.standbys import MARK

MAX_LINE = 1 << 28
"""Bytes of the longest line from a supervisor: a snapshot with the curves of thousands of ranks."""

_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


async def start_supervisor(paths: RunPaths, *, restart_by: str | None = None) -> None:
    """Starts the supervisor of a run, in its own session.

    Raises:
        SupervisorError: it did not start; the message is its own.
    """
    said = await asyncio.to_thread(_start_supervisor, paths, restart_by)
    if said != "ready":
        raise SupervisorError(said or "the supervisor did not start", hint=f"its log: {paths.supervisor_log}")


def _start_supervisor(paths: RunPaths, restart_by: str | None) -> str:
    starter = start_detached(paths, ["supervise", str(paths.folder), *([restart_by] if restart_by else [])])
    with starter:
        assert starter.stdout is not None
        return starter.stdout.readline().decode(errors="replace").strip()


def start_detached(paths: RunPaths, words: list[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Starts a rankdeck command in its own session. Its standard output is a pipe; errors go to the supervisor's log.

    Args:
        paths: of the run.
        words: after `rankdeck`.
        stdin: as for Popen.
    """
    # A supervisor that a rank's script starts must not be killed as a stray child of that rank's run.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with open(os.open(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as log:
        argv = [sys.executable, "-P", str(COMMAND), *words]
        return subprocess.Popen(
            argv, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )


class Connection:
    """One connection to a supervisor, after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.pid = 0

    @classmethod
    async def open(cls, paths: RunPaths) -> Connection:
        """Connects.

        Raises:
            ConnectionError: no process listens.
            SupervisorError: the supervisor refuses the connection.
        """
        try:
            path = socket_of(paths)
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
        except (FileNotFoundError, ConnectionError) as error:
            raise ConnectionError(str(error)) from None
        connection = cls(reader, writer)
        if peer_user(writer.get_extra_info("socket")) != os.geteuid():
            connection.close()
            raise SupervisorError(f"the socket of run {paths.run} belongs to another user", hint=f"remove it: {path}")
        connection.write(Hello(protocol=PROTOCOL, version=__version__))
        welcome = await connection.read()
        if welcome is None:
            connection.close()
            raise ConnectionError("it closed the connection")
        if not isinstance(welcome, Welcome):
            connection.close()
            reason = welcome.reason if isinstance(welcome, Refused) else "unexpected reply"
            raise SupervisorError(f"the supervisor of {paths.run} refuses this connection: {reason}")
        connection.pid = welcome.pid
        return connection

    def write(self, message: Hello | Request) -> None:
        """Sends one line."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def read(self) -> Reply | None:
        """The next line, or None at the end."""
        try:
            line = await self._reader.readline()
            return _replies.decode(line) if line.endswith(b"\n") else None
        except ConnectionError:
            return None
        except msgspec.DecodeError as error:
            raise SupervisorError(f"the supervisor sent an invalid message: {error}") from None

    def close(self) -> None:
        self._writer.close()
