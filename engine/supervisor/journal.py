"""The run's journal: one event a line, appended, never rewritten. Replaying it gives the state.

JSON lines and not a database, because home folders are often on NFS. Requests of users and the end of the run are on the disk before
anything follows from them. An incomplete last line, left by a crash, is removed when the journal is opened.

If the disk is full, events wait in memory, and are written in their order when there is room. A supervisor that dies before
loses them; the agents report again to the next one what is true by then. Only a request that would start or signal
something is refused: a stop is not, because it may be what makes room.
"""

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from engine.core.run.events import INTENTS, AnyEvent, StopRequested
from engine.runs.replay import decode_event, measure_journal


class Journal:
    """Appends events to a run's journal. The file at `path` is created if necessary, for its owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events, self._size = measure_journal(path) if path.exists() else ([], 0)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, self._size)
        self._waiting = b""
        """Lines that are not in the file yet."""

    @property
    def is_behind(self) -> bool:
        """Whether events wait until they can be written."""
        return bool(self._waiting)

    def append(self, event: AnyEvent, *, durable: bool = False) -> OSError | None:
        """Takes one event. An intent is on the disk when this returns None. `durable`: try to put it on the disk too.

        Returns:
            Why the event waits until it can be written, for example because the disk is full; None if it is written.

        Raises:
            OSError: the event is an intent, and can't be written; it is not in the journal. The error names the path.
            ValueError: a field has a value of a wrong type, maybe from a faulty node, so that the journal would be unreadable.
        """
        data = msgspec.json.encode(event) + b"\n"
        decode_event(data)
        is_intent = isinstance(event, INTENTS)
        before, self._waiting = self._waiting, self._waiting + data
        error = self.write_waiting(sync="must" if is_intent else "try" if durable else "no")
        if error is not None and is_intent and not isinstance(event, StopRequested):
            self._waiting = before
            raise error
        self.events.append(event)
        return error

    def write_waiting(self, sync: Literal["no", "try", "must"] = "no") -> OSError | None:
        """Writes the events that wait, completely or not at all. Returns why that was not possible, or None. `sync`: whether they are put on the disk
        too; `must`: if that fails, they are not written."""
        left = self._waiting
        try:
            while left:
                left = left[os.write(self._file, left) :]
            with contextlib.nullcontext() if sync == "must" else contextlib.suppress(OSError):
                if sync != "no":
                    os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            return OSError(error.errno, error.strerror, str(self._path))
        self._size += len(self._waiting)
        self._waiting = b""
        return None

    def close(self) -> None:
        os.close(self._file)
