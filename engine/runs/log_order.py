"""The order in which the output of an attempt's ranks was written, and when, as far as it was seen.

A rank writes directly to two files. Their common order would be lost, so the supervisor notes
how far each file had grown, some twenty times a second, in `attempt_N/order`. If both files of a rank have grown in between, the one that
was written last comes last. A record has 16 bytes: milliseconds since the epoch and the file, then the file's size.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.linux.files import open_regular, read_part
from engine.runs.paths import Stream

_RECORD = struct.Struct("<QQ")
_RANK_BITS = 20  # bits of a record's first number for rank and stream
_STREAMS: tuple[Stream, Stream] = ("out", "err")
PAUSE = 0.2  # seconds between two writes
_BATCH = 4096 * _RECORD.size  # bytes that are read at a time
_BLOCK = 65_536 * _RECORD.size  # bytes that an index reads at a time
_KEPT = 16 * _BLOCK
"""Bytes of the newest records that an index keeps, a quarter of an hour of 64 ranks that always print. It forgets older ones that were not
asked for."""


class Growth(NamedTuple):
    """A file had this size at this time, in seconds since the epoch."""

    at: float
    rank: int
    stream: Stream
    size: int


class OrderWriter:
    """Writes the order of one attempt. Nothing depends on it, so that a full disk is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = bytearray()
        self._last = -1
        """The file of the last record in the buffer."""
        self._written_at = 0.0
        self._descriptor = -1

    def note(self, rank: int, stream: int, size: int, now: float) -> None:
        """Notes the growth of a file. `stream`: 0 for standard output, 1 for standard error. `now`: seconds since the epoch."""
        file = rank << 1 | stream
        if file == self._last:  # nothing else was written in between
            del self._buffer[-_RECORD.size :]
        self._buffer += _RECORD.pack(int(now * 1000) << _RANK_BITS | file, size)
        self._last = file
        if now - self._written_at >= PAUSE or now < self._written_at:
            self.flush(now)

    @property
    def has_unwritten(self) -> bool:
        """Whether something was noted since the last write."""
        return bool(self._buffer)

    def flush(self, now: float | None = None) -> None:
        """Writes the noted records."""
        self._written_at = time.time() if now is None else now
        if not self._buffer:
            return
        try:
            if self._descriptor < 0:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(self._descriptor, self._buffer)
            self._buffer.clear()
        except OSError:
            self._buffer.clear()
            self.close()  # the next write opens it again, if its handle was stale
        self._last = -1

    def close(self) -> None:
        """Writes what was noted, and closes the file. A later write opens it again."""
        self.flush()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def read_order(path: Path, ranks: int) -> Iterator[Growth]:
    """The records of an attempt, oldest first; none if the run is of an older version, or the file is damaged. `ranks`: the number of ranks. Records
    of others are passed over."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return
    with open(descriptor, "rb") as file:
        while data := file.read(_BATCH):
            for first, size in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
                rank, stream = divmod(first & (1 << _RANK_BITS) - 1, 2)
                if rank < ranks:
                    yield Growth((first >> _RANK_BITS) / 1000, rank, _STREAMS[stream], size)


class OrderIndex:
    """Finds places in the order of an attempt. Reads it from its end, as far back as somebody asks. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin = self._end = 0
        """Offsets of what was read."""
        self._kept = _KEPT
        self._files: dict[int, tuple[array[int], array[int]]] = {}
        """For each file, numbers of records, and the file's size in them; the first may be from before `_begin`."""
        self._late: set[int] = set()
        """Files whose records are all in `_files`; a file may have none."""

    def refresh(self) -> bool:
        """Takes in new records. Returns whether an order is known."""
        with self._lock:
            try:
                size = self._path.stat().st_size // _RECORD.size * _RECORD.size
            except OSError:
                return bool(self._files)
            if size < self._end:
                self._files.clear()
                self._late.clear()
                self._begin = self._end = 0
            if not self._end:
                self._begin = self._end = max(0, size - _BLOCK)
            for file, (numbers, sizes) in self._read(self._end, size).items():
                known = self._files.setdefault(file, (array("Q"), array("Q")))
                known[0].extend(numbers)
                known[1].extend(sizes)
            self._end = max(self._end, size)
            if self._end - self._begin > 2 * self._kept:
                self._begin = self._end - self._kept
                for file, (numbers, sizes) in self._files.items():
                    # Each file keeps its last record before that: it tells of files that do not grow any more.
                    place = max(0, bisect_left(numbers, self._begin // _RECORD.size) - 1)
                    self._files[file] = (numbers[place:], sizes[place:])
                    if place:
                        self._late.discard(file)
            return bool(self._files)

    def position(self, rank: int, stream: Stream, end: int) -> float:
        """When a file had a size of at least `end` bytes, as a number that grows with time; infinite: nobody has seen it yet."""
        with self._lock:
            numbers, _, place = self._find(rank, stream, lambda _, sizes: bisect_left(sizes, end))
            return numbers[place] if place < len(numbers) else math.inf

    def size(self, rank: int, stream: Stream, position: float) -> int:
        """The bytes that a file had before a position."""
        with self._lock:
            _, sizes, place = self._find(rank, stream, lambda numbers, _: bisect_left(numbers, position))
            return sizes[place - 1] if place else 0

    def _find(
        self, rank: int, stream: Stream, search: Callable[[array[int], array[int]], int]
    ) -> tuple[array[int], array[int], int]:
        """The records of a file, and a place in them. Reads back as long as the place may be before what was read."""
        file, nothing = rank << 1 | _STREAMS.index(stream), (array("Q"), array("Q"))
        numbers, sizes = self._files.get(file, nothing)
        while not (place := search(numbers, sizes)) and file not in self._late and self._extend():
            numbers, sizes = self._files.get(file, nothing)
        if place:
            self._kept = max(self._kept, self._end - self._begin)
        elif not numbers and not self._begin:
            self._late.add(file)
        return numbers, sizes, place

    def _extend(self) -> bool:
        """Reads the block before what was read. False: there is none."""
        if not self._begin:
            return False
        begin = max(0, self._begin - _BLOCK)
        for file, (numbers, sizes) in self._read(begin, self._begin).items():
            known = self._files.get(file, (array("Q"), array("Q")))
            place = bisect_left(known[0], self._begin // _RECORD.size)
            self._files[file] = (numbers + known[0][place:], sizes + known[1][place:])
        self._begin = begin
        return True

    def _read(self, begin: int, end: int) -> dict[int, tuple[array[int], array[int]]]:
        found: dict[int, tuple[array[int], array[int]]] = {}
        if end <= begin:
            return found
        try:
            data = read_part(self._path, end - begin, begin)
        except OSError:
            return found
        mask = (1 << _RANK_BITS) - 1
        records = _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size])
        for number, (first, size) in enumerate(records, begin // _RECORD.size):
            numbers, sizes = found.setdefault(first & mask, (array("Q"), array("Q")))
            numbers.append(number)
            sizes.append(size)
        return found


def written_before(one: Path, other: Path) -> bool:
    """Whether a file was last written before another; False if one of them does not exist."""
    try:
        return os.stat(one).st_mtime_ns < os.stat(other).st_mtime_ns
    except OSError:
        return False
