"""What ranks write, in whole lines and in the order of arrival: for `launch`, `attach` without a terminal, and `logs`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from engine.paths import RunPaths, Stream

SLICE = 1 << 20
"""Bytes of one file at a time, so that a rank that prints without end does not hide the others."""

STREAMS: tuple[Stream, Stream] = ("out", "err")


class Chunk(NamedTuple):
    """Whole lines, each with its line feed, which only the last of a file may lack."""

    rank: int
    stream: Stream
    data: bytes


class Follower:
    """Reads the files of one attempt from their beginning on.

    Args:
        paths: of the run.
        attempt: whose files.
        ranks: which ranks.
    """

    def __init__(self, paths: RunPaths, attempt: int, ranks: list[int]) -> None:
        self._paths, self._attempt = paths, attempt
        self._sources: list[tuple[int, Stream]] = [(rank, stream) for rank in ranks for stream in STREAMS]
        self._files: dict[tuple[int, Stream], int] = {}
        self._offsets: dict[tuple[int, Stream], int] = {}
        self._partial: dict[tuple[int, Stream], bytes] = {}

    def poll(self) -> Iterator[Chunk]:
        """The lines that were completed since the last call, a slice of each file at most."""
        for source in self._sources:
            data = self._read(source)
            if not data:
                continue
            end = data.rfind(b"\n") + 1
            if end:
                yield Chunk(*source, self._partial.pop(source, b"") + data[:end])
            if end < len(data):
                self._partial[source] = self._partial.get(source, b"") + data[end:]

    def drain(self) -> Iterator[Chunk]:
        """Everything that is left; the last line of a file may have no line feed."""
        while any(self._has_more(source) for source in self._sources):
            yield from self.poll()
        for source, rest in self._partial.items():
            yield Chunk(*source, rest)
        self._partial.clear()

    def _has_more(self, source: tuple[int, Stream]) -> bool:
        try:
            size = os.stat(self._paths.log(self._attempt, *source)).st_size
        except OSError:
            return False
        return size > self._offsets.get(source, 0)

    def _read(self, source: tuple[int, Stream]) -> bytes:
        if source not in self._files:
            try:
                path = self._paths.log(self._attempt, *source)
                self._files[source] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        data = os.read(self._files[source], SLICE)
        self._offsets[source] = self._offsets.get(source, 0) + len(data)
        return data

    def close(self) -> None:
        """Closes the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
