"""What torch's flight recorder has written down of nccl's collectives: a pickle for each rank, in the folder of its attempt.

Ranks write these files, so they are read as plain values: one that names a class or a function is refused.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from engine.core.failures.collectives import Wait, compare
from engine.core.failures.flight_recorder import MAX_WORDS, RankRecord, read_trace
from engine.core.terminal_text import visible
from engine.runs.paths import TRACE
from engine.runs.record import open_regular

MAX_SIZE = 1 << 24
"""Bytes of one file; torch keeps 2,000 collectives, which take a few MiB with the lines of Python that called them."""

MOST_READ = 256
"""Ranks whose files are read."""


class Traces(NamedTuple):
    """What the files of an attempt tell."""

    waits: tuple[Wait, ...]
    """Who waited for whom."""
    damaged: tuple[str, ...]
    """A sentence on each file that can't be read."""


def read_traces(folder: Path, world_size: int, since: float) -> Traces:
    """Who waited for whom when a collective timed out; nothing where torch has written nothing. Ranks on machines that do not
    share the folder are silent.

    Args:
        folder: of the attempt.
        world_size: ranks of the run.
        since: when the newest generation of the attempt began: what was written before tells of a group that is gone.
    """
    records: dict[int, RankRecord | None] = dict.fromkeys(range(world_size))
    damaged = []
    try:
        names = frozenset(os.listdir(folder))
    except OSError:
        return Traces((), ())
    for rank in [rank for rank in records if f"{TRACE}{rank}" in names][:MOST_READ]:
        path = folder / f"{TRACE}{rank}"
        try:
            with open(open_regular(path), "rb") as file:
                if os.fstat(file.fileno()).st_mtime >= since:
                    records[rank] = read_trace(_value(file))
        except Exception as error:  # noqa: BLE001 - pickle raises anything on bytes that are no pickle
            why = error.strerror if isinstance(error, OSError) else str(error)
            words = visible(" ".join((why or type(error).__name__)[:MAX_WORDS].split()))[:MAX_WORDS]
            damaged.append(f"{path} can't be read: {words}")
    return Traces(tuple(compare(records)) if any(records.values()) else (), tuple(damaged))


def _value(file: BinaryIO) -> object:
    if os.fstat(file.fileno()).st_size > MAX_SIZE:
        raise ValueError(f"it is larger than {MAX_SIZE >> 20} MiB")
    data = io.BytesIO(file.read(MAX_SIZE))  # of which no more can be had than there is, whatever length a pickle names
    try:
        return _Values(data).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise ValueError("it is torn, or not torch's") from error


class _Values(pickle._Unpickler):
    """Numbers, texts, lists and dictionaries. It is the one in Python: nine bytes let the public one, in C, take a GiB for its memo."""

    # Without what torch does not write, and what takes much memory for few bytes.
    dispatch = {  # noqa: RUF012
        opcode: load
        for opcode, load in pickle._Unpickler.dispatch.items()
        if opcode not in (pickle.BYTEARRAY8[0], pickle.EMPTY_SET[0])
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses whatever could be called."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and torch's records name nothing")
