"""The files of ranks, read and written in pieces. A rank may replace them by anything: see `open_regular`."""

import os
import stat
from pathlib import Path
from typing import Literal

from engine.linux.files import open_regular

SLICE = 1 << 18  # bytes that are read from one file at a time: a few milliseconds of work
Kind = Literal["out", "err", "metrics"]
KINDS: tuple[Kind, ...] = ("out", "err", "metrics")  # kinds of files, in the order in which agents report their sizes


class GrowingFile:
    """A growing file of a rank, and how far it was read. It is only open while it is read, because thousands of ranks have more files
    than a process may open."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.size = path, 0, 0


def append(path: Path, data: bytes) -> None:
    """Appends to a file for this user only. Raises OSError if not all could be written; it names the path."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        descriptor = open_regular(path, flags)
    except FileNotFoundError:  # the first output of an attempt
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = open_regular(path, flags)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Returns the bytes of a file; 0 if it does not exist or is not a regular file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
