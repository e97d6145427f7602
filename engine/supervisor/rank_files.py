"""The files of ranks, read and written in pieces. A rank may put anything in their place: see `open_regular`."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from engine.runs.record import open_regular

SLICE = 1 << 18
"""Bytes taken from one file at a time: a few milliseconds of work."""

Kind = Literal["out", "err", "metrics"]
KINDS: tuple[Kind, ...] = ("out", "err", "metrics")
"""Of files, in the order in which agents report their sizes."""


class GrowingFile:
    """One growing file of a rank, and how far it was read. It is open only while it is read: thousands of ranks have more files than
    a process may have open."""

    def __init__(self, path: Path, rank: int, offset: int) -> None:
        self.path, self.rank, self.offset, self.size = path, rank, offset, offset

    def read(self) -> bytes:
        descriptor = open_regular(self.path)
        try:
            data = os.pread(descriptor, min(SLICE, self.size - self.offset), self.offset)
        finally:
            os.close(descriptor)
        self.offset += len(data)
        if not data:
            self.size = self.offset
        return data


def append(path: Path, data: bytes) -> None:
    """Appends to a file for this user alone. Raises OSError where not all of it could be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        descriptor = open_regular(path, flags)
    except FileNotFoundError:  # the first of an attempt
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = open_regular(path, flags)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Bytes of a file; none where there is no such file, or it is not a regular one."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
