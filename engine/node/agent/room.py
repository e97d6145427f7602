"""Requests that wait until the disk has room.

On a full disk, ranks that start again would fail again, and use up the restarts of the run. The first start of a run does not wait:
whoever launches it learns why it fails.
"""

from __future__ import annotations

import errno
import os
import time

from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FULL = (errno.ENOSPC, errno.EDQUOT)

ROOM = 1 << 16
"""Bytes that must fit before ranks start."""

INTERVAL = 1.0
"""Seconds between two looks."""


def lack_of_room(folder: str) -> OSError | None:
    """Returns why nothing can be written to a folder, if its disk or quota is full. The folder is created if it is missing."""
    import tempfile  # not needed elsewhere

    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
            file.flush()
    except OSError as error:
        if error.errno in FULL:
            return error
    return None  # any other trouble shows when ranks start


class Room:
    """The requests that wait. `send`: queues a message for the supervisor. `handle`: takes a request again; it may have to wait again."""

    def __init__(self, send: Callable[..., None], handle: Callable[[Message], None]) -> None:
        self.send, self._handle = send, handle
        self._waiting: list[Message] = []
        self._next_look = 0.0
        self._is_told = False

    def must_wait(self, message: Message, folder: str) -> bool:
        """Keeps a request for later if there is no room for it. Returns whether it waits.

        Args:
            message: the request, with its attempt.
            folder: where its files will be.
        """
        error = lack_of_room(folder)
        if error is None:
            return False
        if message not in self._waiting:
            self._waiting.append(message)
        if not self._is_told:
            self._is_told = True
            self.send(type="no_room", reason=error.strerror, path=folder)
        return True

    def look(self) -> None:
        """Takes the requests again that wait, from time to time."""
        if not self._waiting or time.monotonic() < self._next_look:
            return
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._handle(message)
        self._next_look = time.monotonic() + INTERVAL
        self._is_told = bool(self._waiting)

    def drop(self, attempt: int) -> list[Message]:
        """Forgets the requests of all attempts up to this one. Returns them."""
        dropped = [message for message in self._waiting if message["attempt"] <= attempt]
        self._waiting = [message for message in self._waiting if message["attempt"] > attempt]
        return dropped
