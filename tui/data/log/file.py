"""A file that a rank writes to, as lines: opened at its end, and read backwards only as far as the user scrolls. Growth is seen by
looking at the size, because a file server reports no writes of another machine. Nothing keeps a file open: a run of a thousand ranks has
more files than a process may. Every method may wait for a file server."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Literal, NamedTuple

MAX_LINE = 64 << 10  # bytes of a line that are kept: as much as `tui.text.cells.MAX_RAW` looks at

BLOCK = 64 << 10
SHORT_LINE = 160
TAIL_BLOCKS = 16  # most blocks read from the end when a file is opened; they are small if few lines are wanted


class Piece(NamedTuple):
    """A line of one file, without its line feed. `end`: offset after it."""

    data: bytes
    end: int


class LogFile:
    """A file that a rank appends to. Somebody may cut it off or replace it, and it may not exist yet. `rank` is the prefix of its lines if several
    logs are shown as one."""

    def __init__(self, path: Path, *, rank: int | None = None, stream: Literal["out", "err"] = "out") -> None:
        self.path = path
        self.rank = rank
        self.stream = stream
        self.partial = b""  # the beginning of a line whose end has not been written yet
        self.written_at = 0.0  # when the file was last written to, seconds since the epoch
        self.was_replaced = False
        """Whether the lines that were read are no longer in the file. Cleared by `tail` and `rewind`."""
        self.next_line = 0  # offset of the line that `newer` completes next
        self.is_behind = False  # whether the file had more than the last call of `newer` read
        self._begin = 0
        self._read = 0
        self._inode = 0

    @property
    def has_older(self) -> bool:
        """Whether there are lines before the ones that were read."""
        return self._begin > 0

    def holds(self, offset: int) -> bool:
        """Whether the line with the byte at an offset was read."""
        return self._begin <= offset < self.next_line

    def size(self) -> int:
        """Bytes in the file. Notices when it is another file or was cut off."""
        try:
            status = self.path.stat()
        except OSError:
            return self._read
        self.was_replaced |= status.st_size < self._read or self._inode not in (0, status.st_ino)
        self._inode = status.st_ino
        self.written_at = status.st_mtime
        return status.st_size

    def copy(self) -> LogFile:
        return LogFile(self.path, rank=self.rank, stream=self.stream)

    def read_at(self, offset: int, count: int) -> bytes:
        """Bytes of the file; fewer, or none, where they can't be read."""
        try:
            with self.path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), count, offset)
        except OSError:
            return b""

    def tail(self, lines: int) -> list[Piece]:
        """The newest lines; fewer where they are very long, so that at most a megabyte is read."""
        self.rewind()
        begin = self.size()
        block_size = min(BLOCK, SHORT_LINE * lines)
        blocks: deque[bytes] = deque()
        feeds = 0
        while begin > 0 and feeds <= lines and len(blocks) < TAIL_BLOCKS:
            count = min(block_size, begin)
            block = self.read_at(begin - count, count)
            if len(block) < count:
                break
            begin -= count
            blocks.appendleft(block)
            feeds += block.count(b"\n")
        data = b"".join(blocks)
        if begin > 0:
            start = data.find(b"\n") + 1
            begin += start
            data = data[start:]
        pieces, rest = _split(data, begin)
        kept = pieces[-lines:] if lines else []
        self._begin = pieces[-len(kept) - 1].end if len(kept) < len(pieces) else begin
        self._read = begin + len(data)
        self.next_line = self._read - len(rest)
        self.partial = _shortened(rest)
        return kept

    def rewind(self) -> None:
        """Forgets all lines: the next ones are the file's first."""
        self._begin = self._read = self.next_line = self._inode = 0
        self.partial = b""
        self.was_replaced = self.is_behind = False

    def newer(self, limit: int) -> tuple[list[Piece], bool]:
        """The lines in about `limit` bytes after the lines read, and whether there are more."""
        size, self.is_behind = self.size(), False
        if self.was_replaced or size == self._read:
            return [], False
        data = self.read_at(self._read, min(limit, size - self._read))
        pieces, rest = _split(data, self._read)
        if pieces:
            pieces[0] = Piece(_shortened(self.partial + pieces[0].data), pieces[0].end)
            self.partial = b""
            self.next_line = pieces[-1].end
        self.partial = _shortened(self.partial + rest)
        self._read += len(data)
        self.is_behind = bool(data) and self._read < size
        return pieces, self.is_behind

    def older(self, limit: int) -> list[Piece]:
        """The lines in about `limit` bytes before the lines read."""
        begin = max(0, self._begin - limit)
        data = self.read_at(begin, self._begin - begin)
        if begin > 0:
            start = data.find(b"\n") + 1
            begin += start
            data = data[start:]
        pieces, rest = _split(data, begin)
        if rest:
            pieces.append(Piece(_shortened(rest), self._begin))
        self._begin = begin
        return pieces

    def forget_before(self, offset: int) -> None:
        """Treats the lines before an offset as not read."""
        self._begin = max(self._begin, offset)

    def forget_after(self, offset: int) -> None:
        """Treats the lines from an offset on as not read. `offset`: where a line begins."""
        if offset < self._read:
            self._read = self.next_line = offset
            self.partial = b""

    def seek(self, offset: int) -> None:
        """Stands before the line that has the byte at an offset: `older` and `newer` go on from there."""
        self.rewind()
        offset = min(offset, self.size())
        begin = max(0, offset - MAX_LINE)
        before = self.read_at(begin, offset - begin)
        start = before.rfind(b"\n") + 1
        self._begin = self._read = self.next_line = begin + start if start or not begin else offset


def _split(data: bytes, offset: int) -> tuple[list[Piece], bytes]:
    """Complete lines, and the rest after the last line feed. `offset`: where in the file the data begin."""
    *lines, rest = data.split(b"\n")
    pieces: list[Piece] = []
    for line in lines:
        offset += len(line) + 1
        pieces.append(Piece(line if len(line) <= MAX_LINE else _shortened(line), offset))
    return pieces, rest


def _shortened(line: bytes) -> bytes:
    """The part of a very long line that is kept: its beginning; for a progress bar, the newest state."""
    if len(line) <= MAX_LINE:
        return line
    newest = line.rstrip(b"\r").rfind(b"\r") + 1
    return line[newest : newest + MAX_LINE]
