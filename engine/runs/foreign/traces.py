"""Reads files of torch's flight recorder for nccl's collectives: a pickle for each rank, in the folder of its attempt.

Ranks write these files, so only plain values are accepted: a pickle that names a class or a function is refused.
"""

import io
import os
import pickle
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from engine.core.failures.collectives import Wait, compare
from engine.core.failures.flight_recorder import MAX_WORDS, RankRecord, read_trace
from engine.core.terminal_text import visible
from engine.linux.files import open_regular
from engine.runs.paths import TRACE

MAX_SIZE = 1 << 24  # largest file in bytes: torch keeps 2,000 collectives, a few MiB with their stacks
MAX_FILES = 256  # ranks whose files are read


class Traces(NamedTuple):
    """The content of an attempt's files. `waits`: which ranks waited for which. `damaged`: a sentence for each unreadable file."""

    waits: tuple[Wait, ...]
    damaged: tuple[str, ...]


def read_traces(folder: Path, world_size: int, since: float) -> Traces:
    """Which ranks waited for which when a collective timed out; empty if torch has written no files. Files of ranks on machines that do not share the
    folder are missing. `since`: beginning of the newest generation, seconds since the epoch: older files are about a previous group."""
    records: dict[int, RankRecord | None] = dict.fromkeys(range(world_size))
    damaged = []
    try:
        names = frozenset(os.listdir(folder))
    except OSError:
        return Traces((), ())
    for rank in [rank for rank in records if f"{TRACE}{rank}" in names][:MAX_FILES]:
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
    data = io.BytesIO(file.read(MAX_SIZE))  # bounded, even if the pickle declares a larger length
    try:
        return _Values(data).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise ValueError("it is damaged, or not a file of torch") from error


class _Values(pickle._Unpickler):
    """Unpickles numbers, texts, lists and dictionaries. In Python: a pickle of nine bytes makes the C version allocate a GiB."""

    # Without opcodes that torch does not write and that take much memory for few bytes.
    dispatch = {  # noqa: RUF012
        opcode: load
        for opcode, load in pickle._Unpickler.dispatch.items()
        if opcode not in (pickle.BYTEARRAY8[0], pickle.EMPTY_SET[0])
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses classes and functions."""
        raise pickle.UnpicklingError(f"it names {module}.{name}; files of torch contain only plain values")
