"""The run's socket: requests in, answers and updates out.

A subscriber is a few numbers that say what it has seen. When its connection has room it gets whatever changed since, built at
that moment; a slow or stuck one therefore costs one message of memory, holds nobody up, and misses no event.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import time

import msgspec

from engine import __version__
from engine.core.errors import RankdeckError
from engine.core.run import events as ev
from engine.core.run.state import Ended, RunState
from engine.core.views.activity import next_restart
from engine.core.views.view import PROTOCOL, RankView, RunView, Snapshot, Update
from engine.core.views.views import rank_views, run_view
from engine.core.wire import front_end as msg
from engine.runs.record import Whereabouts, replace_file
from engine.supervisor.runner import Runner

PERIOD = 0.1
"""Seconds between two updates to one subscriber: what a screen can show, and no more work than that."""

LOOK_PERIOD = 1.0
"""Seconds between two looks at the socket's file."""

MAX_LINE = 1 << 20
"""Bytes of one request. A client that sends more is not one of ours."""

_requests: msgspec.json.Decoder[msg.Request] = msgspec.json.Decoder(msg.Request)
_encoder = msgspec.json.Encoder()


class Seen:
    """What one subscriber has got."""

    def __init__(self) -> None:
        self.revision = -1
        self.points = 0
        self.story = 0


class Server:
    """Serves one run to its front ends.

    Args:
        runner: the run.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._revision = 0
        self._state: RunState | None = None
        """That the newest picture was made of."""
        self._run: RunView | None = None
        self._run_revision = 0
        self._ranks: list[RankView] = []
        self._rank_revisions = [0] * runner.plan.world_size
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._path = runner.paths.socket
        self._clients: set[asyncio.Task[None]] = set()
        self.refresh()

    # --- the newest picture -------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Rebuilds what has changed. Returns whether anything did."""
        runner = self._runner
        progress = runner.ingest.progress
        if self._state is runner.state and not runner.changed_ranks:
            return False
        self._state = runner.state
        changed = sorted(runner.changed_ranks)
        runner.changed_ranks.clear()
        if not self._ranks:
            changed = list(range(runner.plan.world_size))
            self._ranks = rank_views(runner.state, runner.plan, changed, progress, runner.gpu_use)
        revision = self._revision + 1
        moved = False
        views = rank_views(runner.state, runner.plan, changed, progress, runner.gpu_use)
        for rank, view in zip(changed, views, strict=True):
            if view != self._ranks[rank] or self._run is None:
                self._ranks[rank], self._rank_revisions[rank], moved = view, revision, True
        run = run_view(runner.state, runner.plan, progress, runner.tails, runner.waits)
        if run != self._run:
            self._run, self._run_revision, moved = run, revision, True
        if moved:
            self._revision = revision
        return moved

    async def keep_fresh(self) -> None:
        """Looks for changes every `PERIOD` and wakes the subscribers; ends when it is cancelled."""
        points = story = -1
        while True:
            news = self._runner.ingest.points_seen, len(self._runner.story)
            if self.refresh() or news != (points, story):
                points, story = news
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(PERIOD)

    @property
    def run_view(self) -> RunView:
        """The run as a whole, as it was last looked at."""
        assert self._run is not None
        return self._run

    def snapshot(self) -> Snapshot:
        """Everything, now."""
        series = tuple(self._runner.ingest.series.dump())
        return Snapshot(run=self.run_view, ranks=tuple(self._ranks), series=series, events=tuple(self._runner.story))

    def _has_news(self, seen: Seen) -> bool:
        newest = self._revision, self._runner.ingest.points_seen, len(self._runner.story)
        return (seen.revision, seen.points, seen.story) != newest

    def _next(self, seen: Seen) -> Snapshot | Update | None:
        """What a subscriber has not seen yet, or None."""
        if not self._has_news(seen):
            return None
        ingest, story = self._runner.ingest, self._runner.story
        missed = ingest.points_seen - seen.points
        if seen.revision < 0 or missed > len(ingest.points):
            message: Snapshot | Update = self.snapshot()
        else:
            ranks = tuple(
                view for view, at in zip(self._ranks, self._rank_revisions, strict=True) if at > seen.revision
            )
            points = tuple(itertools.islice(ingest.points, len(ingest.points) - missed, None)) if missed else ()
            run = self._run if self._run_revision > seen.revision else None
            message = Update(run=run, ranks=ranks, points=points, events=tuple(story[seen.story :]))
        seen.revision, seen.points, seen.story = self._revision, ingest.points_seen, len(story)
        return message

    # --- the socket ---------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Opens the socket, for this user only. What an earlier supervisor left in its place is removed."""
        path = self._runner.paths.socket
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_LINE)
        finally:
            os.umask(old)
        self._path = path
        where = Whereabouts(host=socket.gethostname(), pid=os.getpid(), version=__version__, socket=str(path))
        replace_file(self._runner.paths.supervisor, msgspec.json.encode(where))

    async def keep_listening(self) -> None:
        """Listens anew where the socket has gone, as it does when a user logs out who has no other session."""
        while True:
            await asyncio.sleep(LOOK_PERIOD)
            with contextlib.suppress(OSError, RankdeckError):
                if self._runner.paths.socket != self._path or not self._path.exists():
                    old = self._server
                    await self.listen()
                    if old is not None:
                        old.close()

    async def close(self) -> None:
        """Says the last word to every subscriber, for a second at most, and takes the socket away."""
        self.refresh()
        async with self._changed:
            self._changed.notify_all()
        if self._clients:
            await asyncio.wait(self._clients, timeout=1.0)
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
                        if self._runner.ended.is_set():
                            await subscription
                elif isinstance(request, msg.AskStacks):
                    _write(writer, msg.Stacks(ranks=await self._runner.stacks()))
                else:
                    _write(writer, self._answer(request))
        except (msgspec.DecodeError, ValueError) as error:
            _write(writer, msg.Refused(reason=f"not a request: {error}"))
        except ConnectionError:
            pass
        except OSError as error:
            _write(writer, msg.Refused(reason=f"it can't be written down: {error.strerror}"))
        finally:
            self._clients.discard(task)
            if subscription is not None:
                subscription.cancel()
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Who is there, and do both sides speak the same protocol?"""
        peer: socket.socket = writer.get_extra_info("socket")
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.geteuid():
            _write(writer, msg.Refused(reason="this run belongs to another user"))
            return False
        hello = msgspec.json.decode(await reader.readline() or b"{}", type=msg.Hello)
        if hello.protocol != PROTOCOL:
            _write(
                writer, msg.Refused(reason=f"this run was launched by rankdeck {__version__}, you run {hello.version}")
            )
            return False
        _write(writer, msg.Welcome(protocol=PROTOCOL, version=__version__, run=self._runner.paths.run, pid=os.getpid()))
        return True

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        """Sends a subscriber what it has not seen, as fast as it reads, until the run has ended."""
        seen = Seen()
        with contextlib.suppress(ConnectionError):
            while True:
                last = self._runner.ended.is_set()
                if message := self._next(seen):
                    _write(writer, message)
                    await writer.drain()
                if last:
                    break
                if not message:
                    async with self._changed:
                        await self._changed.wait_for(lambda: self._has_news(seen) or self._runner.ended.is_set())
                else:
                    await asyncio.sleep(PERIOD)
            writer.close()

    def _answer(self, request: msg.Stop | msg.Restart | msg.Kill) -> msg.Answer:
        now, state = time.time(), self._runner.state
        match request:
            case msg.Stop(by=by, at_once=at_once):
                ignored = self._runner.handle(ev.StopRequested(at=now, by=by, at_once=at_once))
                text = (
                    "the run is being stopped"
                    if not isinstance(self._runner.state.phase, Ended)
                    else "the run has stopped"
                )
            case msg.Restart(by=by, scope=scope):
                text = _will_restart(state, scope)
                ignored = self._runner.handle(ev.RestartRequested(at=now, by=by, scope=scope))
            case msg.Kill(by=by, rank=rank, signal=number):
                ignored = self._runner.handle(ev.KillRequested(at=now, by=by, rank=rank, signal=number))
                text = f"signal {number} was sent to rank {rank}"
        self.refresh()
        return msg.Answer(text=ignored or text, done=ignored is None)


def _will_restart(state: RunState, scope: ev.Scope) -> str:
    words = next_restart(state, scope).words
    return f"now: {words}" if words else f"attempt {state.attempt + 1} is coming"


def _write(writer: asyncio.StreamWriter, reply: msg.Reply) -> None:
    if not writer.is_closing():
        writer.write(_encoder.encode(reply) + b"\n")
