"""The run's memory: one event a line, appended, never rewritten. Replaying it gives the state.

Plain JSON lines rather than a database, since a home is often NFS. What a user asked for, and how the run ended, is on the
disk before anything follows from it. A last line that was torn by a crash is cut off when the journal is opened again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from engine.core.run.events import INTENTS, AnyEvent
from engine.runs.replay import decode_event, measure_journal


class Journal:
    """Appends events to a run's journal.

    Args:
        path: the file; it is made if it does not exist, readable by its owner only.
    """

    def __init__(self, path: Path) -> None:
        self.events, self._size = measure_journal(path) if path.exists() else ([], 0)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, self._size)

    def append(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Writes one event, whole or not at all. An intent is on the disk when this returns.

        Args:
            event: what has happened.
            durable: put it on the disk too, if that is possible.

        Raises:
            OSError: the disk is full, for one; the journal is as it was.
            ValueError: a field has a value of a wrong type, as a faulty node may send: no journal with it could be read again.
        """
        data = msgspec.json.encode(event) + b"\n"
        decode_event(data)
        left = data
        try:
            while left:
                left = left[os.write(self._file, left) :]
            if durable or isinstance(event, INTENTS):
                self._sync(event)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self.events.append(event)

    def _sync(self, event: AnyEvent) -> None:
        try:
            os.fsync(self._file)
        except OSError:
            if isinstance(event, INTENTS):  # it is refused, so no supervisor may replay it
                raise

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
