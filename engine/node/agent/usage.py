"""Processor time, memory and I/O of ranks, from /proc. Takes two small reads for each rank every few seconds."""

from __future__ import annotations

import os
import time

from engine.node.agent.state import NodeState, Rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 3.0
"""Seconds between two samples."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Samples the ranks of this node. `send` reports; `is_idle` says whether messages wait already, which a sample must not add to."""

    def __init__(self, state: NodeState, send: Callable[..., None], is_idle: Callable[[], bool]) -> None:
        self._state, self._send, self._is_idle = state, send, is_idle
        self._next = 0.0
        self._before: dict[int, tuple[int, int, float, float, int | None, int | None]] = {}
        """Of each rank: pid, start time, when it was read, seconds of processor time, bytes read, bytes written."""

    def look(self) -> None:
        """Takes a sample if one is due, and reports ranks for which there is one before it."""
        now = time.monotonic()
        if now < self._next or not self._is_idle():
            return
        self._next = now + INTERVAL
        running = self._state.running()
        numbers = {rank.number for rank in running}
        self._before = {number: one for number, one in self._before.items() if number in numbers}
        used = [found for rank in running if (found := self._sample(rank)) is not None]
        if used:
            self._send(type="usage", attempt=self._state.attempt, ranks=used)

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
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
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
