"""The run's journal: one event a line, appended, never rewritten. Replaying it gives the state.

JSON lines and not a database, because home folders are often on NFS. Requests of users and the end of the run are on the disk before
anything follows from them. An incomplete last line, left by a crash, is removed when the journal is opened.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from engine.core.run.events import INTENTS, AnyEvent
from engine.runs.replay import decode_event, measure_journal


class Journal:
    """Appends events to a run's journal. The file at `path` is created if necessary, for its owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events, self._size = measure_journal(path) if path.exists() else ([], 0)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, self._size)

    def append(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Writes one event, completely or not at all. An intent is on the disk when this returns.

        Args:
            event: the event.
            durable: try to put it on the disk too.

        Raises:
            OSError: for example, the disk is full; the journal is unchanged. It names the path.
            ValueError: a field has a value of a wrong type, maybe from a faulty node, so that the journal would be unreadable.
        """
        data = msgspec.json.encode(event) + b"\n"
        decode_event(data)
        left = data
        try:
            while left:
                left = left[os.write(self._file, left) :]
            if durable or isinstance(event, INTENTS):
                self._sync(event)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        self._size += len(data)
        self.events.append(event)

    def _sync(self, event: AnyEvent) -> None:
        try:
            os.fsync(self._file)
        except OSError:
            if isinstance(event, INTENTS):  # the request is refused, so it must not be replayed
                raise

    def close(self) -> None:
        os.close(self._file)
