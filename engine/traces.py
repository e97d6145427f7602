"""What torch's flight recorder has written down of nccl's collectives: a pickle for each rank, in the folder of its attempt.

Ranks write these files, so they are read as plain values: one that names a class or a function is refused.
"""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from engine.core.collectives import Told, Wait, compare, read_trace
from engine.paths import TRACE

MAX_SIZE = 1 << 26
"""Bytes of one file; torch keeps 2,000 collectives, which take a few MiB with the lines of Python that called them."""

MOST_READ = 256
"""Ranks whose files are read."""


class Traces(NamedTuple):
    """What the files of an attempt tell."""

    waits: tuple[Wait, ...]
    """Who waited for whom."""
    damaged: tuple[str, ...]
    """A sentence on each file that can't be read."""


def read_traces(folder: Path, world_size: int) -> Traces:
    """Who waited for whom when a collective timed out; nothing where torch has written nothing. Ranks on machines that do not
    share the folder are silent.

    Args:
        folder: of the attempt.
        world_size: ranks of the run.
    """
    told: dict[int, Told | None] = dict.fromkeys(range(world_size))
    damaged = []
    try:
        names = frozenset(os.listdir(folder))
    except OSError:
        return Traces((), ())
    for rank in [rank for rank in told if f"{TRACE}{rank}" in names][:MOST_READ]:
        path = folder / f"{TRACE}{rank}"
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                told[rank] = read_trace(_value(file))
        except Exception as error:  # noqa: BLE001 - pickle raises anything on bytes that are no pickle
            why = error.strerror if isinstance(error, OSError) else str(error)
            damaged.append(f"{path} can't be read: {' '.join((why or type(error).__name__).split())}")
    return Traces(tuple(compare(told)) if any(told.values()) else (), tuple(damaged))


def _value(file: BinaryIO) -> object:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    if status.st_size > MAX_SIZE:
        raise ValueError(f"it is larger than {MAX_SIZE >> 20} MiB")
    return _Values(file).load()


class _Values(pickle.Unpickler):
    """Numbers, texts, lists and dictionaries."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses whatever could be called."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and torch's records name nothing")
