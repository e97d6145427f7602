"""Reads a log in a thread of its own, so that a file server that hangs does not stop the app."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from tui.data.merged_log import Batch, MergedLog, Place, Where


class LogReader:
    """Reads for one view, one request at a time, in a thread of its own: a file server that hangs does not stop the app.

    The thread is a daemon because a read that hangs can't be ended, and must not keep the app from leaving.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        """`arrived` is called in the thread when there is something to take."""
        self._arrived = arrived
        self._wanted: SimpleQueue[tuple[MergedLog, Where | Place] | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[MergedLog, Batch]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_busy = False

    def ask(self, log: MergedLog, where: Where | Place) -> None:
        """Requests a read. The one before must have been taken."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-reader", daemon=True)
            self._thread.start()
        self.is_busy = True
        self._wanted.put((log, where))

    def take(self) -> tuple[MergedLog, Batch] | None:
        """What was read, once; None while there is nothing."""
        if self._read.empty():
            return None
        self.is_busy = False
        return self._read.get()

    def close(self) -> None:
        """Lets the thread end. It is not waited for."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            log, where = wanted
            self._read.put((log, log.fetch(where)))
            # The app may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._arrived()
