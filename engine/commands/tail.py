"""Reads the output of ranks in whole lines, in the order of arrival: for `launch`, `attach` and `logs`."""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.commands.bars import newest_state
from engine.linux.files import open_regular
from engine.runs.log_order import Growth
from engine.runs.paths import RunPaths, Stream

SLICE = 1 << 18  # bytes read from one file at a time, so that a rank that prints endlessly does not starve the others
LONGEST_LINE = 1 << 22  # bytes after which a line without an end is passed on in pieces

STREAMS: tuple[Stream, Stream] = ("out", "err")


class Chunk(NamedTuple):
    """Whole lines with their line feeds. Only the last line of a file, or a piece of a very long line, may lack one."""

    rank: int
    stream: Stream
    data: bytes
    at: float  # when its end was seen, in seconds since the epoch


class Follower:
    """Reads the files of some ranks of one attempt from their beginning. `final`: passes on only the last state of a line that was overwritten with
    carriage returns. `whole`: only whole lines are passed on; else everything as it comes."""

    def __init__(
        self, paths: RunPaths, attempt: int, ranks: list[int], *, final: bool = False, whole: bool = True
    ) -> None:
        self._paths, self._attempt = paths, attempt
        self._ranks = ranks
        self._sources: list[tuple[int, Stream]] = [(rank, stream) for rank in ranks for stream in STREAMS]
        self._files: dict[tuple[int, Stream], int] = {}
        self._offsets: dict[tuple[int, Stream], int] = {}
        self._partial: dict[tuple[int, Stream], bytearray] = {}
        self._final, self._whole = final, whole
        self.behind = False
        """Whether the last `poll` left data, so that the next one should follow soon."""

    def poll(self) -> Iterator[Chunk]:
        """Lines completed since the last call, at most a slice of each file."""
        self.behind = False
        for rank in self._ranks:
            out, err = ((rank, stream) for stream in STREAMS)
            written = [os.fstat(self._files[file]).st_mtime_ns for file in (out, err) if file in self._files]
            # Of each rank, the file that was written last comes last.
            for source in (err, out) if len(written) == 2 and written[1] < written[0] else (out, err):
                data = self._read(source)
                self.behind |= len(data) == SLICE
                yield from self._lines(source, data, time.time())

    def replay(self, order: Iterable[Growth]) -> Iterator[Chunk]:
        """The output so far, in the order in which it was written, as far as that is known."""
        chosen = set(self._sources)
        for growth in order:
            source = (growth.rank, growth.stream)
            while source in chosen and (left := growth.size - self._offsets.get(source, 0)) > 0:
                if not (data := self._read(source, min(left, SLICE))):
                    break
                yield from self._lines(source, data, growth.at)

    def drain(self) -> Iterator[Chunk]:
        """Everything up to the current end of the files; the last line of a file may lack its line feed."""
        ends: dict[tuple[int, Stream], int] = {}
        for source in self._sources:
            with contextlib.suppress(OSError):
                found = os.lstat(self._paths.log(self._attempt, *source))
                ends[source] = found.st_size if stat.S_ISREG(found.st_mode) else 0
        while left := [source for source, end in ends.items() if self._offsets.get(source, 0) < end]:
            for source in left:
                if not (data := self._read(source)):
                    ends[source] = 0  # the file was truncated
                yield from self._lines(source, data, time.time())
        for source, rest in self._partial.items():
            yield Chunk(*source, final_states(bytes(rest)) if self._final else bytes(rest), time.time())
        self._partial.clear()

    def bars(self) -> dict[tuple[int, Stream], bytes]:
        """The newest state of each line that has been overwritten and is not complete."""
        return {
            source: newest_state(bytes(rest).split(b"\r")) for source, rest in self._partial.items() if b"\r" in rest
        }

    def _lines(self, source: tuple[int, Stream], data: bytes, at: float) -> Iterator[Chunk]:
        if not self._whole:
            if data:
                yield Chunk(*source, data, at)
            return
        end = data.rfind(b"\n") + 1
        if end:
            lines = bytes(self._partial.pop(source, b"")) + data[:end]
            yield Chunk(*source, final_states(lines) if self._final else lines, at)
        if end < len(data):
            rest = self._partial.setdefault(source, bytearray())
            rest += data[end:]
            if self._final and (older := rest.rfind(b"\r", 0, rest.rfind(b"\r"))) > 0:
                del rest[:older]  # the state before the last is complete
            if len(rest) > LONGEST_LINE:
                yield Chunk(*source, bytes(self._partial.pop(source)), at)

    def _read(self, source: tuple[int, Stream], most: int = SLICE) -> bytes:
        if source not in self._files:
            try:
                self._files[source] = open_regular(self._paths.log(self._attempt, *source))
            except OSError:
                return b""
        descriptor = self._files[source]
        data = os.read(descriptor, most)
        if not data and os.fstat(descriptor).st_size < self._offsets.get(source, 0):  # it was truncated
            self._offsets[source] = os.lseek(descriptor, 0, os.SEEK_SET)
            data = os.read(descriptor, most)
        self._offsets[source] = self._offsets.get(source, 0) + len(data)
        return data

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def final_states(lines: bytes) -> bytes:
    """The lines, each without what carriage returns have overwritten."""
    if b"\r" not in lines:
        return lines
    return b"\n".join(newest_state(line.split(b"\r")) if b"\r" in line else line for line in lines.split(b"\n"))
