"""Keeps what lists say of ended runs on this machine, because to read thousands of runs takes seconds.

The index is derived from the files of runs. If it is lost or damaged, or can't be written, these files are read again. Each process replaces it as a
whole, so it needs no locks.
"""

import contextlib
import hashlib
import os
from typing import Generic, TypeVar

import msgspec

from engine import __version__
from engine.core.errors import RankdeckError
from engine.linux.files import read_file, replace_file
from engine.runs.paths import private_folder, runs_folder, runtime_folder

Value = TypeVar("Value")

Stamp = tuple[int, ...]  # changes with each file from which a value is derived


def stamp_of(*paths: str) -> Stamp:
    """Time, size and inode of each of some files. A missing file has an entry too."""
    found: list[int] = []
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            found.append(0)
        else:
            found += (status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(found)


class Index(Generic[Value]):
    """Values by the ids of runs, as long as the stamps of the runs stay the same. `name` is part of the name of the file; `kind`: type of the values."""

    def __init__(self, name: str, kind: type[Value]) -> None:
        self._rows: dict[str, tuple[Stamp, Value]] = {}
        self._used: dict[str, tuple[Stamp, Value]] = {}
        self._file = ""
        with contextlib.suppress(RankdeckError, OSError):  # without a private folder there is no index
            home = hashlib.sha256(os.fsencode(runs_folder())).hexdigest()[:16]
            folder = private_folder(runtime_folder() / "lists")
            self._file = f"{folder}/{home}-{name}-{__version__}.json"
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._rows = msgspec.json.decode(read_file(self._file), type=dict[str, tuple[Stamp, kind]])  # type: ignore[valid-type]

    def find(self, run: str, stamp: Stamp) -> Value | None:
        """The value of a run; None: there is none, or the run has changed."""
        row = self._rows.get(run)
        if row is None or row[0] != stamp:
            return None
        self._used[run] = row
        return row[1]

    def keep(self, run: str, stamp: Stamp, value: Value) -> None:
        """Keeps the value of a run."""
        self._used[run] = (stamp, value)

    def save(self) -> None:
        """Writes the values that were found or kept, if they are others than before."""
        if self._used != self._rows and self._file:
            with contextlib.suppress(OSError):
                replace_file(self._file, msgspec.json.encode(self._used))
        self._rows, self._used = self._used, {}
