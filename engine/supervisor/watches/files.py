"""Keeps the files of a run complete: what could not be written on a full disk is written when there is space, and a plan that was
removed is written again. Without it, no other command would find the run.
"""

import asyncio
import contextlib
import os

from engine.linux.files import read_file, replace_file
from engine.supervisor.journal import Journal
from engine.supervisor.run import WATCH_PERIOD, SupervisedRun

PLAN_PERIOD = 10.0  # seconds between two looks for the plan, in a home that many nodes share
ROOM = 1 << 16  # bytes that must fit before the disk counts as writable: more than one event
END_PATIENCE = 86400.0  # Seconds to wait for space to record how a run ended. No other process knows it.


class FileWatch:
    """Watches the files of one run. `run`: whose `disk_trouble` others note when they can't write."""

    def __init__(self, run: SupervisedRun, journal: Journal) -> None:
        self._run, self._journal = run, journal
        self._plan = read_file(run.paths.plan)
        self._is_told = False
        self._due = 0.0

    def look(self, now: float) -> None:
        """Restores the plan, and writes what waits."""
        run, plan = self._run, self._run.paths.plan
        if now >= self._due:
            self._due = now + PLAN_PERIOD
            with contextlib.suppress(OSError):  # the folder is gone, or the disk is full: a later look tries again
                if not plan.exists():
                    replace_file(plan, self._plan)
                    os.utime(plan, (run.state.launched_at,) * 2)  # lists of runs order by it
        if self._journal.is_behind and (error := self._journal.write_waiting()) is not None:
            run.note_disk_trouble(error)
        if run.disk_trouble is None:
            return
        if not self._is_told:
            self._is_told = True
            self._tell(f"{run.disk_words}; rankdeck writes the rest as soon as there is space")
        elif not self._journal.is_behind and self._has_room():
            run.disk_trouble, self._is_told = None, False
            self._tell("there is space again, and rankdeck has written what waited for it")

    def _tell(self, text: str) -> None:
        run = self._run
        run.note_change()
        run.warn(run.head, "disk", text)

    def _has_room(self) -> bool:
        probe = self._run.paths.room
        try:
            replace_file(probe, bytes(ROOM))
            probe.unlink()
        except OSError:
            return False
        return True

    async def wait_written(self) -> None:
        """Waits until the journal is whole, or for `END_PATIENCE`. The looks of the watch may have failed."""
        for _ in range(int(END_PATIENCE / WATCH_PERIOD)):
            if not self._journal.is_behind or self._journal.write_waiting() is None:
                return
            await asyncio.sleep(WATCH_PERIOD)
