"""Reads the scalars that ranks write with TensorBoard, Weights & Biases or the Trainer, where the supervisor sees the working directory.

All of it happens in threads that nothing waits for long: the working directory may be on a file server that hangs.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from engine.core.metrics.event_records import Scalar
from engine.core.run.state import Alive
from engine.runs.foreign.event_files import Tracker, find_files, read_new, tracker_of
from engine.supervisor.log import note
from engine.supervisor.output.ingest import Ingest
from engine.supervisor.run import WATCH_PERIOD, SupervisedRun

MOST_FILES = 64  # files of one attempt: usually rank 0 has one
SEARCH_TIME = 5.0  # longest time, in seconds, that a search takes beside the work of the supervisor

END_TIME = 0.5
"""The same limit at the end of a run, which waits for it. Also the longest time for unread data at the end of an attempt."""

LOOK_PAUSE = 0.01  # seconds between two looks whether a thread has ended
FIRST_PAUSE, LAST_PAUSE = 2.0, 30.0  # seconds between searches: growing, and at least 20 times as long as a search
Found = TypeVar("Found")


class _Work(threading.Thread, Generic[Found]):
    """A call in a thread of its own, which does not keep the process from ending. `function`: may block for ever."""

    def __init__(self, function: Callable[[], Found]) -> None:
        super().__init__(name=f"reads event files: {function}", daemon=True)
        self._function = function
        self.found: Found | None = None
        """The result of the function; None: it has not returned yet, or has failed."""
        self.seconds = 0.0
        """How long it took."""
        self.start()

    async def wait(self, until: float) -> bool:
        """Waits for the end of the call, without blocking the event loop. Returns whether it has ended. `until`: on the monotonic clock."""
        while self.is_alive() and time.monotonic() < until:  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(LOOK_PAUSE)
        return not self.is_alive()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.found = self._function()
        finally:
            self.seconds = time.monotonic() - began


class _Slice:
    """New values in a file. `error`: why it can't be read."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset
        self.found: list[Scalar] = []
        self.error: Exception | None = None
        try:
            self.found, self.offset = read_new(path, offset)
        except (OSError, ValueError) as error:
            self.error = error


class EventWatch:
    """The event files of a run. `run`: whose ranks write them. `ingest`: takes their values."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._files = AttemptFiles(run, ingest)

    def look(self, now: float) -> None:
        self._files.look()

    def start_attempt(self) -> None:
        """Another attempt begins, and does not wait for the rest of the files of the one before."""
        before, self._files = self._files, AttemptFiles(self._run, self._ingest)
        if before.has_files:
            self._run.tasks.create_task(before.finish(is_last=False), name="event files of the attempt before")

    async def finish(self) -> None:
        """Reads the rest of all files: the run is over."""
        await self._files.finish(is_last=True)


class AttemptFiles:
    """The event files of one attempt. The arguments are those of `EventWatch`."""

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest, self._progress = run, ingest, ingest.progress
        self._folder = Path(run.plan.workdir)
        self._files: dict[Path, int] = {}
        self._failed: set[Path] = set()
        self._ranks: dict[int, int] = {}
        """By pid."""
        self._trackers: dict[int, Tracker] = {}
        """Readers of ranks that have a file. A rank that writes the same numbers with two trackers is read once."""
        self._search: _Work[dict[Path, int]] | None = None
        self._reading: _Work[list[_Slice]] | None = None
        self._pause = self._due = FIRST_PAUSE

    def look(self) -> None:
        """Takes the values read since the last look, reads on in files that are known, and begins a search from time to time."""
        for rank, phase in enumerate(self._run.state.ranks):
            if isinstance(phase, Alive):
                self._ranks[phase.pid] = rank
        if self._reading is None or not self._reading.is_alive():
            self._take_read()
            self._read()
        self._due -= WATCH_PERIOD
        if self._search is not None and not self._search.is_alive():
            self._take(self._search.found or {})
            self._pause = min(1.5 * self._pause, LAST_PAUSE)
            self._due, self._search = max(self._pause, 20 * self._search.seconds), None
        elif self._search is None and self._ranks and self._due <= 0:
            self._search = self._searching(SEARCH_TIME)

    def _searching(self, seconds: float) -> _Work[dict[Path, int]]:
        folder, ranks, launched = self._folder, dict(self._ranks), self._run.state.launched_at
        args = self._run.plan.program.args
        return _Work(lambda: find_files(folder, ranks, launched, seconds, args))

    def _take(self, found: dict[Path, int]) -> None:
        for path, rank in found.items():
            is_of_tracker = self._trackers.setdefault(rank, tracker_of(path)) == tracker_of(path)
            if is_of_tracker and path not in self._failed and len(self._files) < MOST_FILES:
                self._files.setdefault(path, rank)

    @property
    def has_files(self) -> bool:
        """Whether any file is known."""
        return bool(self._files)

    async def finish(self, *, is_last: bool) -> None:
        """Reads the rest of all files. A file server that hangs costs twice `END_TIME` at most. `is_last`: whether the run is over too, so that there
        is time to look for files once more."""
        if self._ranks and is_last:
            search = self._searching(END_TIME / 2)  # what it has found until then is kept
            await search.wait(time.monotonic() + END_TIME)
            self._take(search.found or {})
        until = time.monotonic() + END_TIME
        if await self._has_read(until):
            self._take_read()
            self._read()
            while await self._has_read(until) and self._take_read():
                self._read()

    async def _has_read(self, until: float) -> bool:
        """Waits for the current read. `until`: on the monotonic clock; then False."""
        return self._reading is None or await self._reading.wait(until)

    def _read(self) -> None:
        """Begins to read a slice of each file."""
        places = [(path, self._ingest.file_offset(path)) for path in self._files]
        self._reading = _Work(lambda: [_Slice(path, offset) for path, offset in places]) if places else None

    def _take_read(self) -> bool:
        """Takes the values that were read. Returns whether there were any. A file that can't be read is not read again."""
        read = self._reading.found or [] if self._reading is not None else []
        self._reading = None
        is_more = False
        for part in read:
            if part.error is not None:
                note(f"{part.path} is not read: {part.error}")
                self._failed.add(part.path)
                del self._files[part.path]
            elif part.offset > self._ingest.file_offset(part.path):
                rank = self._files[part.path]
                self._ingest.take_scalars(rank, part.path, part.found, part.offset, self._progress[rank])
                is_more = True
        return is_more
