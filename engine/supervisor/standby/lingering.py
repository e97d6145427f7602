"""After a run that was launched from the shell, its supervisor becomes a standby, so that the next launch is as fast as one from the app.

The process replaces itself by `standby FOLDER SECONDS SOCKET LOCK`, with the socket listening and the lock held: a launch that comes
before it is ready waits in the socket's queue, and nothing of the run stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import MOST_LINGERING, can_stand_by, is_memory_short, standby_key
from engine.installed import COMMAND
from engine.linux.files import replace_file
from engine.linux.processes import start_time
from engine.linux.sockets import peer_of
from engine.node.limits import memory_left
from engine.runs.imports import with_known_imports
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import read_value
from engine.runs.standbys import StandbyNote, circumstances, end_standby, new_standby, standbys


def stay(plan: LaunchPlan) -> None:
    """Replaces this process by a standby for launches like the one that has ended. Returns if none is to stay.

    Args:
        plan: Plan of the run that has ended. No other part of its supervisor is left.

    Raises:
        OSError, RankdeckError: the standby can't be made.
    """
    if not plan.linger or not can_stand_by(plan) or is_memory_low():
        return
    plan = with_known_imports(plan)  # the run may have told what its script imports
    key = standby_key(plan, circumstances())
    with open(runs_folder() / ".standbys", "wb") as gate:  # runs may end at the same moment
        fcntl.flock(gate, fcntl.LOCK_EX)
        others = sorted((one for one in standbys() if one[1].socket), key=lambda one: one[1].until)
        if any(standing.key == key and _refresh(standing) for _, standing in others):
            return
        for paths, standing in others[: 1 - MOST_LINGERING or None]:
            end_standby(paths, standing)
        paths = new_standby(plan)
        lock = take_lock(paths)
        listener = _listen(paths)
        standing = StandbyNote(
            pid=os.getpid(),
            start=start_time(os.getpid()),
            python=plan.python,
            key=key,
            until=time.time() + plan.linger,
            socket=str(paths.socket),
        )
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it waits for the handler of `wait_for_run`
        replace_file(paths.standing, msgspec.json.encode(standing))
        _become(paths, plan.linger, listener, lock)


def is_memory_low() -> bool:
    """Whether this machine, or this process's control group, has little memory left."""
    left = memory_left()
    return left is not None and is_memory_short(*left)


def _refresh(standing: StandbyNote) -> bool:
    """Lets another standby stay longer. Returns whether it listens."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(5.0)
        wire.connect(standing.socket)
        wire.sendall(b'""\n')
        return peer_of(wire)[1] == os.geteuid()
    return False


def _listen(paths: RunPaths) -> socket.socket:
    """The socket of a standby, for this user only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(str(paths.socket))
    finally:
        os.umask(old)
    listener.listen()
    return listener


def _become(paths: RunPaths, seconds: float, listener: socket.socket, lock: int) -> None:
    """Replaces this process."""
    log = os.open(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(source, target)
    for number in (signal.SIGHUP, signal.SIGINT):  # a supervisor ignores them, and ranks would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(lock, True)
    os.set_inheritable(listener.fileno(), True)
    words = ["standby", str(paths.folder), f"{seconds:g}", str(listener.fileno()), str(lock)]
    os.execv(sys.executable, [sys.executable, "-P", str(COMMAND), *words])


class Callers:
    """Launches that may come over a socket, for a while.

    Args:
        seconds: without a message, after which the process ends.
        listener: the descriptor of the socket.
    """

    def __init__(self, paths: RunPaths, seconds: float, listener: int) -> None:
        os.set_inheritable(listener, False)
        self._paths, self._seconds = paths, seconds
        self._listener = socket.socket(fileno=listener)
        self._server: asyncio.Server | None = None
        self._answer: int | None = None

    async def next_run(self) -> Path | None:
        """The folder of a run to supervise; None: no request came in this time."""
        loop = asyncio.get_running_loop()
        self._run: asyncio.Future[Path] = loop.create_future()
        self._touch()
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listener)
        while (left := self._deadline - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(self._run), left)
        return None

    def hang_up(self, *, taken: bool) -> None:
        """Closes the socket. If a run was taken, standard output becomes the connection to its front end."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError, RankdeckError):
            self._paths.socket.unlink()
        if self._answer is not None:
            if taken:
                os.dup2(self._answer, 1)
            os.close(self._answer)

    def _touch(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._seconds

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = writer.get_extra_info("socket")
        try:
            while peer_of(wire)[1] == os.geteuid() and (line := await reader.readline()).endswith(b"\n"):
                self._touch()
                self._note_deadline()
                if folder := json.loads(line):
                    if not self._run.done() and not _has_left(wire.fileno()):
                        self._answer = os.dup(wire.fileno())
                        self._run.set_result(Path(folder))
                    return
        except (OSError, ValueError):
            pass  # of that caller only
        finally:
            writer.close()

    def _note_deadline(self) -> None:
        with contextlib.suppress(OSError):
            standing = read_value(self._paths.standing, StandbyNote)
            standing = msgspec.structs.replace(standing, until=time.time() + self._seconds)
            replace_file(self._paths.standing, msgspec.json.encode(standing))


def _has_left(descriptor: int) -> bool:
    """Whether the other end of a connection has closed it: a launch does not wait for ever."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
