"""Remembers in which part of it a supervisor died, for the next one: a part in which two of them in a row died is left out.

It also counts the supervisors in a row that an exception outside of every part has ended.

An exception is contained where it is raised (`SupervisedRun.keep`). What ends the process at once leaves nothing but what was noted
before: a byte in a small file that is mapped into memory, in the user's runtime folder. Setting a byte takes no system call, and it
outlives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import struct
import threading
import types
import zlib
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

from engine.core.errors import RankdeckError
from engine.core.run.parts import Part
from engine.runs.paths import RunPaths
from engine.runs.record import open_regular, read_whereabouts, replace_file
from engine.supervisor.log import note

_NUMBERS = {part: number for number, part in enumerate(Part, 1)}
"""The number of each part in the file. 0 stands for none."""

_COUNT = len(Part) + 1

_HEAD = struct.Struct("<IQQB")
"""Which parts the file is about, the event that is replayed, the one at which the supervisor before died, and how many supervisors in a row
have failed. Events count from 1."""

MOST_FAILURES = 255
"""Failures that are counted."""

_NOW = _HEAD.size
"""Where the part is in which the event loop is."""

_THREADS = _NOW + 1
"""A byte for each part: how many threads are in it."""

_BEFORE = _THREADS + _COUNT
"""A byte for each part: whether the supervisor before died in it."""

_SIZE = _BEFORE + _COUNT

_VERSION = zlib.crc32("\n".join(Part).encode())


_KEEPS_PROCESS = (Exception, asyncio.CancelledError, GeneratorExit)
"""What is raised while the process goes on. SystemExit ends it, so that its part stays marked."""

_Marks = bytearray | mmap.mmap


class Inside:
    """Sets a mark while something runs. A context manager of its own, because one of contextlib takes four times as long.

    Args:
        marks: all of them.
        place: of the mark.
        value: while it is set.
    """

    __slots__ = ("_before", "_marks", "_place", "_value")

    def __init__(self, marks: _Marks, place: int, value: int) -> None:
        self._marks, self._place, self._value = marks, place, value

    def __enter__(self) -> None:
        self._before = self._marks[self._place]
        self._marks[self._place] = self._value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, _KEEPS_PROCESS):
            self._marks[self._place] = self._before


class InsideThread:
    """Counts the threads that run something at once: they may leave it in any order.

    Args:
        marks: all of them.
        place: of the count.
    """

    _lock = threading.Lock()

    def __init__(self, marks: _Marks, place: int) -> None:
        self._marks, self._place = marks, place

    def __enter__(self) -> None:
        with self._lock:
            self._marks[self._place] += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, _KEEPS_PROCESS):
            with self._lock:
                self._marks[self._place] -= 1


class CrashMarks:
    """The marks of one supervisor.

    Args:
        path: of the file; None: nothing outlives this process.
        old: that of the supervisor before.
    """

    parts: list[Part]
    """Parts in which this supervisor's two predecessors died."""
    event: int | None
    """The number of the event in the journal at whose replay both died, from 0; None: at none."""
    failures: int
    """Supervisors in a row before this one that an exception outside of every part has ended."""

    def __init__(self, path: Path | None = None, old: Path | None = None) -> None:
        self._path, data = path, _read(old)
        self._marks: _Marks = _first_marks(data)
        self.parts, self.event = _died_twice(data)
        self.failures = _HEAD.unpack_from(data)[3]
        if path is not None:
            replace_file(path, bytes(self._marks))
            with open(open_regular(path, os.O_RDWR), "r+b") as file:
                self._marks = mmap.mmap(file.fileno(), _SIZE)

    @classmethod
    def of_run(cls, paths: RunPaths) -> CrashMarks:
        """The marks for a new supervisor of a run."""
        try:
            path, where = paths.crash_marks, read_whereabouts(paths)
            return cls(path, path if where is None else Path(where.socket).with_name(path.name))
        except (RankdeckError, OSError, ValueError) as error:
            note(f"if this supervisor dies, the next one will not know in which part: {error}")
            return cls()

    def inside(self, part: Part) -> Inside:
        """What the event loop does in this `with` statement belongs to a part. Nothing in it may be awaited."""
        return Inside(self._marks, _NOW, _NUMBERS[part])

    def inside_thread(self, part: Part) -> InsideThread:
        """What this thread does in this `with` statement belongs to a part."""
        return InsideThread(self._marks, _THREADS + _NUMBERS[part])

    @types.coroutine
    def run(self, part: Part, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
        """Runs a part, each of whose steps is marked."""
        marks, number = self._marks, _NUMBERS[part]
        thrown: BaseException | None = None
        while True:
            before, marks[_NOW] = marks[_NOW], number
            try:
                wish = work.send(None) if thrown is None else work.throw(thrown)
            except _KEEPS_PROCESS as end:
                marks[_NOW] = before
                if isinstance(end, StopIteration):
                    return
                raise
            marks[_NOW], thrown = before, None
            try:
                yield wish
            except BaseException as error:  # noqa: BLE001 - the part decides what follows
                thrown = error

    def replays(self, event: int | None) -> None:
        """Marks the event that is replayed, by its number in the journal; None: the replay is over."""
        _, _, before, failures = _HEAD.unpack_from(self._marks)
        _HEAD.pack_into(self._marks, 0, _VERSION, 0 if event is None else event + 1, before, failures)

    def count_failures(self, failures: int) -> None:
        """Sets `failures`, also for the next supervisor."""
        self.failures = min(failures, MOST_FAILURES)
        _, event, before, _ = _HEAD.unpack_from(self._marks)
        _HEAD.pack_into(self._marks, 0, _VERSION, event, before, self.failures)

    def forget(self) -> None:
        """Forgets how the supervisors before ended: this one has lived for long."""
        self.failures = 0
        _HEAD.pack_into(self._marks, 0, _VERSION, 0, 0, 0)
        self._marks[_BEFORE:_SIZE] = bytes(_SIZE - _BEFORE)

    def close(self) -> None:
        """Removes the file: this supervisor ends as it should."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _read(path: Path | None) -> bytes:
    """The marks that a dead supervisor has left; zeros: it has left none."""
    nothing = bytes(_SIZE)
    if path is None:
        return nothing
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(_SIZE + 1)
    except OSError:
        return nothing
    return data if len(data) == _SIZE and _HEAD.unpack_from(data)[0] == _VERSION else nothing


def _died_in(data: bytes) -> set[int]:
    """Numbers of the parts in which a supervisor died."""
    return {number for number in _NUMBERS.values() if number == data[_NOW] or data[_THREADS + number]}


def _died_twice(data: bytes) -> tuple[list[Part], int | None]:
    _, event, event_before, _ = _HEAD.unpack_from(data)
    died_in = _died_in(data)
    parts = [part for part, number in _NUMBERS.items() if number in died_in and data[_BEFORE + number]]
    return parts, event - 1 if event and event == event_before else None


def _first_marks(data: bytes) -> bytearray:
    """The marks of a supervisor before it does anything, whose predecessor has left `data`."""
    marks = bytearray(_SIZE)
    _, event, _, failures = _HEAD.unpack_from(data)
    _HEAD.pack_into(marks, 0, _VERSION, 0, event, failures)
    for number in _died_in(data):
        marks[_BEFORE + number] = 1
    return marks
