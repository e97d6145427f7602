"""Reads the output of ranks in whole lines, in the order of arrival: for `launch`, `attach` and `logs`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from engine.runs.paths import RunPaths, Stream
from engine.runs.record import open_regular

SLICE = 1 << 18
"""Bytes read from one file at a time, so that a rank that prints endlessly does not starve the others."""

LONGEST_LINE = 1 << 22
"""Bytes after which a line without an end is passed on in pieces."""

STREAMS: tuple[Stream, Stream] = ("out", "err")


class Chunk(NamedTuple):
    """Whole lines with their line feeds. Only the last line of a file, or a piece of a very long line, may lack one."""

    rank: int
    stream: Stream
    data: bytes


class Follower:
    """Reads the files of some ranks of one attempt from their beginning."""

    def __init__(self, paths: RunPaths, attempt: int, ranks: list[int]) -> None:
        self._paths, self._attempt = paths, attempt
        self._sources: list[tuple[int, Stream]] = [(rank, stream) for rank in ranks for stream in STREAMS]
        self._files: dict[tuple[int, Stream], int] = {}
        self._offsets: dict[tuple[int, Stream], int] = {}
        self._partial: dict[tuple[int, Stream], bytearray] = {}
        self.behind = False
        """Whether the last `poll` left data, so that the next one should follow soon."""

    def poll(self) -> Iterator[Chunk]:
        """Lines completed since the last call, at most a slice of each file."""
        self.behind = False
        for source in self._sources:
            data = self._read(source)
            self.behind |= len(data) == SLICE
            yield from self._lines(source, data)

    def drain(self) -> Iterator[Chunk]:
        """Everything up to the current end of the files; the last line of a file may lack its line feed."""
        ends = {source: self._size(source) for source in self._sources}
        while left := [source for source in self._sources if self._offsets.get(source, 0) < ends[source]]:
            for source in left:
                if not (data := self._read(source)):
                    ends[source] = 0  # the file was truncated
                yield from self._lines(source, data)
        for source, rest in self._partial.items():
            yield Chunk(*source, bytes(rest))
        self._partial.clear()

    def _lines(self, source: tuple[int, Stream], data: bytes) -> Iterator[Chunk]:
        end = data.rfind(b"\n") + 1
        if end:
            yield Chunk(*source, bytes(self._partial.pop(source, b"")) + data[:end])
        if end < len(data):
            rest = self._partial.setdefault(source, bytearray())
            rest += data[end:]
            if len(rest) > LONGEST_LINE:
                yield Chunk(*source, bytes(self._partial.pop(source)))

    def _size(self, source: tuple[int, Stream]) -> int:
        try:
            found = os.lstat(self._paths.log(self._attempt, *source))
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def _read(self, source: tuple[int, Stream]) -> bytes:
        if source not in self._files:
            try:
                self._files[source] = open_regular(self._paths.log(self._attempt, *source))
            except OSError:
                return b""
        descriptor = self._files[source]
        data = os.read(descriptor, SLICE)
        if not data and os.fstat(descriptor).st_size < self._offsets.get(source, 0):  # it was truncated
            self._offsets[source] = os.lseek(descriptor, 0, os.SEEK_SET)
            data = os.read(descriptor, SLICE)
        self._offsets[source] = self._offsets.get(source, 0) + len(data)
        return data

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
