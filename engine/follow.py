"""What ranks write, as lines in the order of arrival: for `launch`, `attach` without a terminal, and `logs`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from engine.paths import RunPaths, Stream

SLICE = 1 << 20
"""Bytes of one file at a time, so that a rank that prints without end does not hide the others."""

STREAMS: tuple[Stream, Stream] = ("out", "err")


class Line(NamedTuple):
    """One line without its line feed."""

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
        self._partial: dict[tuple[int, Stream], bytes] = {}

    def poll(self) -> Iterator[Line]:
        """Every line that was completed since the last call, a slice of each file at most."""
        for source in self._sources:
            data = self._read(source)
            if not data:
                continue
            *lines, rest = (self._partial.pop(source, b"") + data).split(b"\n")
            if rest:
                self._partial[source] = rest
            for line in lines:
                yield Line(*source, line)

    def drain(self) -> Iterator[Line]:
        """Everything that is left, last lines without a line feed too."""
        while lines := list(self.poll()):
            yield from lines
        for source, rest in self._partial.items():
            yield Line(*source, rest)
        self._partial.clear()

    def _read(self, source: tuple[int, Stream]) -> bytes:
        if source not in self._files:
            try:
                path = self._paths.log(self._attempt, *source)
                self._files[source] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        return os.read(self._files[source], SLICE)

    def close(self) -> None:
        """Closes the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
