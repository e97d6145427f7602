"""What ranks wrote, as lines of one or many files of any size that grow: the model behind the log view.

`MergedLog.fetch` does the reading and may wait for a file server, so it is called in a `LogReader`'s thread;
`MergedLog.apply` and everything else only touch memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Literal, NamedTuple

from tui.data.log_file import BLOCK, LogFile

HISTORY = 5_000
"""Lines of one file that are loaded when it is opened."""

MAX_HISTORY = 20_000
"""Lines that are loaded in all when many files are opened as one."""

MAX_LINES = 100_000
MAX_BYTES = 32 << 20
"""What is held in memory at once. Beyond it the far end is dropped, and read again when somebody scrolls there."""

CHUNK = 256 << 10
"""Bytes that one request reads of all files together, so that no request takes long."""

MAX_PARTIALS = 16
"""Unfinished lines that are shown at once."""

Where = Literal["newer", "older", "start", "end"]
"""What to read: on from what is held, back from what is held, the beginning or the end of everything."""


class Line(NamedTuple):
    """A line of a merged log. `source`: index of its file; `end`: offset of what follows it there."""

    source: int
    data: bytes
    end: int


class Batch(NamedTuple):
    """What one request read."""

    where: Where
    lines: list[Line]
    partials: list[Line]
    more: bool
    """There is more where this came from."""
    has_older: bool


class MergedLog:
    """Several files as one log, in memory that does not grow for ever.

    What was in the files when they were opened stands file by file, the one that was written to last at the end: the files
    hold no times. From then on lines stand in the order in which they arrived. A line whose end is still to come stands
    below all others until it comes.
    """

    def __init__(self, sources: Sequence[LogFile]) -> None:
        self.sources = tuple(sources)
        self.ranks = tuple(sorted({source.rank for source in sources if source.rank is not None}))
        self.has_stderr = any(source.stream == "err" for source in sources)
        self.lines: list[Line] = []
        self.partials: list[Line] = []
        self.first = 0
        """Number of `lines[0]`. A line keeps its number while lines before it come and go."""
        self.has_older = False
        self.caught_up = False
        """Whether everything that was in the files at the last request is held."""
        self._bytes = 0
        self._opened = False
        self._turn = 0
        self._pending: dict[int, bytes] = {}

    @property
    def is_full(self) -> bool:
        """Whether as much is held as may be."""
        return len(self.lines) >= MAX_LINES or self._bytes >= MAX_BYTES

    # Called in the reader's thread.

    def fetch(self, where: Where) -> Batch:
        """Reads. May wait for a file server.

        Args:
            where: what to read. Before anything was read, everything but the start means the end.
        """
        if where == "start":
            for source in self.sources:
                source.rewind()
            lines, more = self._newer()
        elif where == "end" or not self._opened:
            where, lines, more = "end", self._tails(), False
        elif where == "older":
            lines, more = self._older(), False
        else:
            lines, more = self._newer()
            if any(source.was_replaced for source in self.sources):
                where, lines, more = "end", self._tails(), False
        self._opened = True
        return Batch(where, lines, self._partials(), more, any(source.has_older for source in self.sources))

    def _tails(self) -> list[Line]:
        each = min(HISTORY, max(50, MAX_HISTORY // max(1, len(self.sources))))
        tails = [(source, index, source.tail(each)) for index, source in enumerate(self.sources)]
        tails.sort(key=lambda tail: tail[0].written_at)
        return [Line(index, *piece) for _, index, pieces in tails for piece in pieces]

    def _older(self) -> list[Line]:
        wanted = [(index, source) for index, source in enumerate(self.sources) if source.has_older]
        share = max(BLOCK // 8, CHUNK // max(1, len(wanted)))
        return [Line(index, *piece) for index, source in wanted for piece in source.older(share)]

    def _newer(self) -> tuple[list[Line], bool]:
        lines: list[Line] = []
        count = len(self.sources)
        share = CHUNK // max(1, min(8, count))
        for step in range(count):
            index = (self._turn + step) % count
            pieces, more = self.sources[index].newer(share)
            lines += [Line(index, *piece) for piece in pieces]
            if more:
                self._turn = index + 1
                return lines, True
        return lines, False

    def _partials(self) -> list[Line]:
        """Lines that are still being written, the one that changed last at the end."""
        for index, source in enumerate(self.sources):
            if self._pending.get(index) != source.partial:
                self._pending.pop(index, None)
                if source.partial:
                    self._pending[index] = source.partial
        return [Line(index, data, 0) for index, data in self._pending.items()][-MAX_PARTIALS:]

    # Called in the app's thread.

    def apply(self, batch: Batch) -> None:
        """Takes in what was read, in the order of the requests."""
        if batch.where == "older":
            self.lines[:0] = batch.lines
            self.first -= len(batch.lines)
        elif batch.where == "newer":
            self.lines += batch.lines
        else:
            self.first += len(self.lines)
            self.lines = batch.lines
            self._bytes = 0
        self._bytes += sum(len(line.data) for line in batch.lines)
        self.partials = batch.partials
        self.has_older = batch.has_older
        if batch.where != "older":
            self.caught_up = not batch.more

    def trim(self, most: int) -> int:
        """Drops the oldest lines of a full log. Not while a request is under way.

        Args:
            most: lines that may be dropped.

        Returns:
            How many were.
        """
        if not self.is_full:
            return 0
        dropped = self.lines[: min(most, max(len(self.lines) // 10, len(self.lines) - MAX_LINES))]
        for source, end in {line.source: line.end for line in dropped}.items():
            self.sources[source].forget_before(end)
        del self.lines[: len(dropped)]
        self.first += len(dropped)
        self._bytes -= sum(len(line.data) for line in dropped)
        self.has_older |= bool(dropped)
        return len(dropped)


class LogReader:
    """Reads for one view, one request at a time, in a thread of its own: a file server that hangs does not stop the app.

    The thread is a daemon because a read that hangs can't be ended, and must not keep the app from leaving.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        """`arrived` is called in the thread when there is something to take."""
        self._arrived = arrived
        self._wanted: SimpleQueue[tuple[MergedLog, Where] | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[MergedLog, Batch]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_busy = False

    def ask(self, log: MergedLog, where: Where) -> None:
        """Requests a read. The one before must have been taken."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-reader", daemon=True)
            self._thread.start()
        self.is_busy = True
        self._wanted.put((log, where))

    def take(self) -> tuple[MergedLog, Batch] | None:
        """What was read, once; None while there is nothing."""
        if self._read.empty():
            return None
        self.is_busy = False
        return self._read.get()

    def close(self) -> None:
        """Lets the thread end. It is not waited for."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            log, where = wanted
            self._read.put((log, log.fetch(where)))
            # The app may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._arrived()
