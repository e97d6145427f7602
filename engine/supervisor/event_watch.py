"""Reads the scalars that ranks write with TensorBoard, where the working directory is visible to the supervisor."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from engine.core.run.state import Alive
from engine.runs.event_files import find_files, read_new
from engine.supervisor.ingest import Ingest
from engine.supervisor.log import note
from engine.supervisor.supervised import WATCH_PERIOD, SupervisedRun

MOST_FILES = 64
"""Files of one attempt: usually rank 0 has one."""

SEARCH_TIME = 5.0
"""Longest time, in seconds, that a search takes beside the work of the supervisor."""

END_TIME = 0.5
"""The same at the end of a run, which waits for it. And the longest time for what is not read yet at the end of an attempt."""

FIRST_PAUSE, LAST_PAUSE = 2.0, 30.0
"""Seconds between searches: they become longer, and are at least 20 times as long as a search takes."""


class EventWatch:
    """The event files of a run's current attempt.

    Args:
        run: whose ranks write them.
        ingest: takes what they say.
    """

    def __init__(self, run: SupervisedRun, ingest: Ingest) -> None:
        self._run, self._ingest = run, ingest
        self._folder = Path(run.plan.workdir)
        self._files: dict[Path, int] = {}
        self._failed: set[Path] = set()
        self._ranks: dict[int, int] = {}
        """By pid."""
        self._search: asyncio.Task[None] | None = None
        self._pause = self._due = FIRST_PAUSE

    def look(self) -> None:
        """Reads what is new in files that are known, and begins a search from time to time."""
        for rank, phase in enumerate(self._run.state.ranks):
            if isinstance(phase, Alive):
                self._ranks[phase.pid] = rank
        for path in list(self._files):
            self._read(path)
        self._due -= WATCH_PERIOD
        if self._ranks and self._due <= 0 and (self._search is None or self._search.done()):
            self._search = self._run.tasks.create_task(self._look_for_files(), name="the search for event files")

    async def _look_for_files(self) -> None:
        began, attempt = time.monotonic(), self._run.state.attempt
        launched = self._run.state.launched_at
        found = await asyncio.to_thread(find_files, self._folder, dict(self._ranks), launched, SEARCH_TIME)
        if attempt == self._run.state.attempt:
            self._take(found)
        self._pause = min(1.5 * self._pause, LAST_PAUSE)
        self._due = max(self._pause, 20 * (time.monotonic() - began))

    def _take(self, found: dict[Path, int]) -> None:
        for path, rank in found.items():
            if path not in self._failed and len(self._files) < MOST_FILES:
                self._files.setdefault(path, rank)

    def finish(self, *, is_last: bool) -> None:
        """Reads the rest of all files: the attempt is over.

        Args:
            is_last: whether the run is over too, so that there is time to look for files once more. Another attempt must not wait for that.
        """
        if self._ranks and is_last:
            self._take(find_files(self._folder, self._ranks, self._run.state.launched_at, END_TIME))
        until = time.monotonic() + END_TIME
        for path in list(self._files):
            while self._read(path) and time.monotonic() < until:
                pass
        self._files.clear()
        self._failed.clear()
        self._ranks.clear()
        self._pause = self._due = FIRST_PAUSE

    def _read(self, path: Path) -> bool:
        """Reads a slice of a file. Returns whether there was anything. What is no file of events is not read again."""
        before = self._ingest.file_offset(path)
        try:
            found, offset = read_new(path, before)
        except (OSError, ValueError) as error:
            note(f"{path} is not read: {error}")
            self._failed.add(path)
            del self._files[path]
            return False
        if offset > before:
            self._ingest.take_scalars(self._files[path], path, found, offset)
        return offset > before
