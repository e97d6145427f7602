"""Reads a log in a thread of its own, so that a file server that hangs does not stop the app."""

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from tui.data.log.merged import Batch, MergedLog, Place, Where

CATCH_UP = 4  # reads in a row that may leave more behind before a view that follows jumps to the end instead


class LogReader:
    """Reads for one view, one request at a time. The thread is a daemon because a read that hangs can't be ended, and must not keep the
    app from leaving."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self.wanted: Where | Place | None = None  # the next place to read; None: any
        self._arrived = arrived
        self._requests: SimpleQueue[tuple[MergedLog, Where | Place] | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[MergedLog, Batch]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._behind = 0  # reads in a row that left more behind

    def poll(self, log: MergedLog | None, *, newer: bool) -> None:
        """Requests the wanted place, unless a request is under way. `newer`: reads newer lines if no place is wanted."""
        if log is None or self._is_busy or not (newer or self.wanted is not None):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-reader", daemon=True)
            self._thread.start()
        self._is_busy = True
        self._requests.put((log, self.wanted or "newer"))
        self.wanted = None

    def take(self) -> tuple[MergedLog, Batch] | None:
        """The batch that was read, once; None while there is none."""
        if self._read.empty():
            return None
        self._is_busy = False
        return self._read.get()

    def catches_up(self, batch: Batch, *, follows: bool) -> bool:
        """Whether more is to be read at once: one read was not enough. A view that follows jumps to the end after some."""
        self._behind = self._behind + 1 if batch.more and follows else 0
        if self._behind > CATCH_UP:
            self.wanted = "end"
            self._behind = 0
        return batch.more or self.wanted is not None

    def close(self) -> None:
        """Lets the thread end. It is not waited for."""
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            log, where = request
            self._read.put((log, log.fetch(where)))
            # The app may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._arrived()
