"""Processor time, memory and I/O of ranks, from two small files in /proc; and use of GPUs, reported by a process of `gpus.py`, because a
query may hang in a broken driver.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable

from engine.linux.processes import start_process, stat_fields
from engine.node.agent.ranks.jobs import environment_of
from engine.node.agent.ranks.saving import open_checkpoints
from engine.node.agent.state import NodeState, Rank
from engine.node.agent.wire import Any, Message

INTERVAL = 3.0  # seconds between two samples
MOST_WATCHED = 8  # ranks of this node whose open files are looked at
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Samples the ranks of this node. `send` reports; `is_idle` says whether messages wait already, which a sample must not add to."""

    def __init__(self, state: NodeState, send: Callable[..., None], is_idle: Callable[[], bool]) -> None:
        self._state, self._send, self._is_idle = state, send, is_idle
        self._next = 0.0
        self._before: dict[int, tuple[int, int, float, float, int | None, int | None]] = {}
        """By rank: pid, start time, time of the reading, seconds of processor time, bytes read, bytes written."""

    def look(self) -> None:
        """Takes a sample if one is due, and reports ranks for which there is one before it."""
        now = time.monotonic()
        if now < self._next or not self._is_idle():
            return
        self._next = now + INTERVAL
        running = self._state.running()
        self._state.note_written(open_checkpoints([rank.pid for rank in running[:MOST_WATCHED]]))
        numbers = {rank.number for rank in running}
        self._before = {number: one for number, one in self._before.items() if number in numbers}
        used = [found for rank in running if (found := self._sample(rank)) is not None]
        if used:
            self._send(type="usage", attempt=self._state.attempt, ranks=used, written=self._state.written[-1:])

    def _sample(self, rank: Rank) -> list[int | None] | None:
        """Number, percent of one core, bytes of memory, bytes read and written a second; None: it is the first sample, or too late."""
        status = _status(rank.pid)
        if status is None or status[0] != rank.start:
            self._before.pop(rank.number, None)
            return None
        start, seconds, memory = status
        now, (read, written) = time.monotonic(), _transfers(rank.pid)
        before = self._before.get(rank.number)
        self._before[rank.number] = (rank.pid, start, now, seconds, read, written)
        if before is None or before[:2] != (rank.pid, start) or now <= before[2]:
            return None
        passed = now - before[2]
        rates = [
            None if new is None or old is None else max(0, round((new - old) / passed))
            for new, old in ((read, before[4]), (written, before[5]))
        ]
        return [rank.number, max(0, round(100 * (seconds - before[3]) / passed)), memory, *rates]


def _status(pid: int) -> tuple[int, float, int] | None:
    """Start time, seconds of processor time and bytes of memory of a process; None: there is none."""
    fields = stat_fields(pid)
    if not fields:
        return None
    return int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


def _transfers(pid: int) -> tuple[int | None, int | None]:
    """Bytes that a process has read and written, from disk, cache or network file system; None: unknown."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            values = dict(line.split(b": ") for line in file.read().splitlines())
        return int(values[b"rchar"]), int(values[b"wchar"])
    except (OSError, ValueError, KeyError):
        return None, None


GPU_SILENCE = 6.0  # seconds without a sample, which `gpus.py` sends every two seconds, after which GPU use is unknown


class GpuWatch:
    """Starts the process once in an attempt. It ends when its socket is closed, at the latest when the attempt is cleared."""

    def __init__(self, state: NodeState, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._state, self._selector, self.send = state, selector, send
        self._wire: socket.socket | None = None
        self._pid = 0
        self._ranks: list[int] = []
        """The ranks of its samples, in their order."""
        self._heard = 0.0

    def watch_gpus(self, message: Message) -> None:
        """`watch_gpus`: starts it."""
        attempt = self._state.attempt
        if message["attempt"] != attempt or attempt <= self._state.cleared or self._wire is not None:
            return
        environment = environment_of(message, self._state.mark)
        wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [*message["argv"], str(theirs.fileno())]
            self._pid = start_process(argv, env=environment, pass_fds=[theirs.fileno()])
        wire.setblocking(False)
        self._wire, self._ranks, self._heard = wire, message["ranks"], time.monotonic()
        self._state.helpers.add(self._pid)
        self._selector.register(wire, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        if self._wire is None:
            return
        try:
            data = self._wire.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard = time.monotonic()
            self._tell(json.loads(data))
        else:
            self._tell(None)
            self.end()

    def notice_silence(self) -> None:
        """Reports unknown values if a driver hangs; otherwise the supervisor would keep showing the last ones."""
        if self._wire is not None and time.monotonic() - self._heard > GPU_SILENCE:
            self._heard = time.monotonic()
            self._tell(None)

    def _tell(self, uses: list[list[Any]] | None) -> None:
        unknown = [None, None, None]
        ranks = [[rank, *(uses[index] if uses else unknown)] for index, rank in enumerate(self._ranks)]
        self.send(type="gpus", attempt=self._state.attempt, ranks=ranks)

    def end(self) -> None:
        """Closes its socket, which ends it."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._selector.unregister(wire)
            wire.close()
            self._state.helpers.discard(self._pid)
