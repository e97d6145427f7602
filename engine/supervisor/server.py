"""The run's socket: requests in, answers and updates out. Only processes of the same user may connect: see `_greet`."""

import asyncio
import contextlib
import itertools
import os
import socket
import time
import traceback

import msgspec

from engine import __version__
from engine.core.errors import RankdeckError
from engine.core.run import events as ev
from engine.core.run.requests import is_about_to_start, refuses_restart
from engine.core.run.state import Ended, status_words
from engine.core.views.view import PROTOCOL
from engine.core.wire import front_end as msg
from engine.linux.files import replace_file
from engine.linux.sockets import peer_of
from engine.runs.record import Submitted, Whereabouts, place_here, read_submitted
from engine.supervisor.log import note
from engine.supervisor.runner import Runner
from engine.supervisor.snapshots import Seen, Snapshots

UPDATE_PERIOD = 0.1  # seconds between two updates to one subscriber: more would not be visible
SOCKET_CHECK_PERIOD = 1.0  # seconds between two checks of the socket's path
NOTE_CHECKS = 4  # checks of the socket for one of the note about it, in a home that many nodes share
CLOSE_TIMEOUT = 1.0  # seconds for subscribers to receive the last update
MAX_LINE = 1 << 20  # Bytes of one request. rankdeck's clients send less.
_requests: msgspec.json.Decoder[msg.Request] = msgspec.json.Decoder(msg.Request)
_encoder = msgspec.json.Encoder()


class Server:
    """Serves one run to its front ends."""

    def __init__(self, runner: Runner, snapshots: Snapshots) -> None:
        self._runner, self._run, self._snapshots = runner, runner.run, snapshots
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._path = self._run.paths.socket
        self._is_noted = False
        self._clients: set[asyncio.Task[None]] = set()

    async def keep_fresh(self) -> None:
        """Wakes the subscribers every `UPDATE_PERIOD` if there are changes. Runs until it is cancelled."""
        known = (-1, -1, -1)
        while True:
            self._snapshots.refresh()
            if self._snapshots.newest != known:
                known = self._snapshots.newest
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(UPDATE_PERIOD)

    async def listen(self) -> None:
        """Opens the socket, for this user only. Replaces that of an earlier supervisor."""
        path = self._run.paths.socket
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_LINE)
        finally:
            os.umask(old)
        self._path = path
        self._note_whereabouts()

    def _note_whereabouts(self) -> None:
        """Writes where this supervisor is, and the job in which the user has launched the run, if there is one. If the disk is full, commands
        find the supervisor by the default path of its socket."""
        paths, place = self._run.paths, place_here()
        where = Whereabouts(
            host=socket.gethostname(), pid=os.getpid(), version=__version__, socket=str(self._path), place=place
        )
        try:
            if place is not None and ((known := read_submitted(paths)) is None or known.by_user):
                job = Submitted(
                    job=place.job, at=time.time(), scheduler=place.scheduler, by_user=True, restarts=place.restarts
                )
                replace_file(paths.job, msgspec.json.encode(job))  # first: who sees the host finds the job
            replace_file(paths.supervisor, msgspec.json.encode(where))
            self._is_noted = True
        except OSError as error:
            self._is_noted = False
            self._run.note_disk_trouble(error)

    async def keep_listening(self) -> None:
        """Listens again if the socket is gone: systemd removes it when a user's last session ends. Keeps the note about it."""
        for look in itertools.count():
            await asyncio.sleep(SOCKET_CHECK_PERIOD)
            try:
                # Opened, because a shared file system may say for long that a file exists which another host has removed.
                if look % NOTE_CHECKS == 0:
                    os.close(os.open(self._run.paths.supervisor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError:
                self._is_noted = False
            if not self._is_noted:
                self._note_whereabouts()
            with contextlib.suppress(OSError, RankdeckError):
                if self._run.paths.socket != self._path or not self._path.exists():
                    old = self._server
                    await self.listen()
                    if old is not None:
                        old.close()

    async def close(self) -> None:
        """Sends every subscriber the last update, and removes the socket."""
        self._snapshots.refresh()
        async with self._changed:
            self._changed.notify_all()
        if self._clients:
            await asyncio.wait(self._clients, timeout=CLOSE_TIMEOUT)
        for task in self._clients:
            task.cancel()
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        subscription: asyncio.Task[None] | None = None
        try:
            if not await self._greet(reader, writer):
                return
            while line := await reader.readline():
                request = _requests.decode(line)
                if isinstance(request, msg.Subscribe):
                    if subscription is None:
                        subscription = asyncio.create_task(self._feed(writer))
                        if self._run.ended.is_set():
                            await subscription
                elif isinstance(request, msg.AskStacks):
                    _write(writer, msg.Stacks(ranks=await self._runner.questions.stacks()))
                else:
                    _write(writer, self._answer(request))
        except (msgspec.DecodeError, ValueError) as error:
            _write(writer, msg.Refused(reason=f"not a request: {error}"))
        except ConnectionError:
            pass
        except OSError as error:
            _write(writer, msg.Refused(reason=f"the request can't be recorded: {error.strerror}"))
        except Exception as error:  # noqa: BLE001 - a defect: whoever waits for an answer must get one
            note("".join(traceback.format_exception(error)))
            _write(writer, msg.Refused(reason=f"a defect: {type(error).__name__}: {error}", defect=True))
        finally:
            self._clients.discard(task)
            if subscription is not None:
                subscription.cancel()
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the peer is this user and uses the same protocol."""
        peer: socket.socket = writer.get_extra_info("socket")
        if peer_of(peer)[1] != os.geteuid():
            _write(writer, msg.Refused(reason="this run belongs to another user"))
            return False
        hello = msgspec.json.decode(await reader.readline() or b"{}", type=msg.Hello)
        if hello.protocol != PROTOCOL:
            reason = f"this run was launched by rankdeck {__version__}, you run {hello.version}"
            _write(writer, msg.Refused(reason=reason, version=__version__))
            return False
        _write(writer, msg.Welcome(protocol=PROTOCOL, version=__version__, run=self._run.paths.run, pid=os.getpid()))
        return True

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        """Sends a subscriber all changes, as fast as it reads, until the run has ended."""
        seen = Seen()
        with contextlib.suppress(ConnectionError):
            while True:
                last = self._run.ended.is_set()
                if message := self._snapshots.next(seen):
                    _write(writer, message)
                    await writer.drain()
                if last:
                    break
                if not message:
                    async with self._changed:
                        await self._changed.wait_for(lambda: self._snapshots.has_news(seen) or self._run.ended.is_set())
                else:
                    await asyncio.sleep(UPDATE_PERIOD)
            writer.close()

    def _answer(self, request: msg.Stop | msg.Restart | msg.Kill) -> msg.Answer:
        now, ending, early, refused = time.time(), self._run.ended.is_set(), False, False
        match request:
            case msg.Stop(by=by, at_once=at_once, again=again, by_job=by_job):
                asked = ev.StopRequested(at=now, by=by, at_once=at_once, again=again, by_job=by_job)
                ignored = self._runner.handle(asked)
                has_ended = isinstance(self._run.state.phase, Ended)
                text = "the run has stopped" if has_ended else "the run is being stopped"
            case msg.Restart(by=by, scope=scope, attempt=attempt, generation=generation):
                text = f"now: {self._snapshots.restart_words(scope)}"
                event = ev.RestartRequested(at=now, by=by, scope=scope, attempt=attempt, generation=generation)
                ignored = self._runner.handle(event)
                refused = ignored is not None and refuses_restart(self._run.state)
            case msg.Kill(by=by, rank=rank, signal=number, pid=pid):
                ignored = self._runner.handle(ev.KillRequested(at=now, by=by, rank=rank, signal=number, pid=pid))
                text = f"{status_words(-number)} was sent to rank {rank}"
                early = ignored is not None and pid is None and is_about_to_start(self._run.state, rank)
        self._snapshots.refresh()
        return msg.Answer(text=ignored or text, done=ignored is None, ending=ending, early=early, refused=refused)


def _write(writer: asyncio.StreamWriter, reply: msg.Reply) -> None:
    if not writer.is_closing():
        writer.write(_encoder.encode(reply) + b"\n")
