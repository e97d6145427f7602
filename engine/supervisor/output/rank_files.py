"""The files of ranks, read and written in pieces. A rank may replace them by anything: see `open_regular`."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from engine.linux.files import open_regular

MOST_OPEN = 128  # files that are kept open
SLICE = 1 << 18  # bytes that are read from one file at a time: a few milliseconds of work
Kind = Literal["out", "err", "metrics"]
KINDS: tuple[Kind, ...] = ("out", "err", "metrics")  # kinds of files, in the order in which agents report their sizes


class GrowingFile:
    """A growing file of a rank, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.size = path, 0, 0


class OpenFiles:
    """Reads and appends to files of ranks. Those that were used last stay open: thousands of ranks have more files than a process may open, and each
    `open` in a home that machines share asks its server."""

    def __init__(self) -> None:
        self._open: dict[tuple[Path, int], int] = {}

    def read(self, file: GrowingFile, size: int) -> bytes:
        """At most `size` bytes from where the file was read to. Raises OSError: it can't be read, or is not a regular file."""
        with self._opened(file.path, os.O_RDONLY) as descriptor:
            return os.pread(descriptor, size, file.offset)

    def append(self, path: Path, data: bytes) -> None:
        """Appends to a file for this user only. Raises OSError if not all could be written; it names the path."""
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            while data:
                data = data[os.write(descriptor, data) :]

    @contextlib.contextmanager
    def _opened(self, path: Path, flags: int) -> Iterator[int]:
        """A descriptor of a file. After an error it is closed, because its handle may be stale."""
        descriptor = self._open.pop((path, flags), -1)
        try:
            if descriptor < 0 and flags & os.O_CREAT:
                path.parent.mkdir(mode=0o700, exist_ok=True)  # the first output of an attempt
            descriptor = open_regular(path, flags) if descriptor < 0 else descriptor
            yield descriptor
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._open[path, flags] = descriptor
        if len(self._open) > MOST_OPEN:
            os.close(self._open.pop(next(iter(self._open))))

    def clear(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    __del__ = clear


def size_of(path: Path) -> int:
    """Returns the bytes of a file; 0 if it does not exist or is not a regular file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
