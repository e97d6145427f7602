"""Processes to be started: their environment, the job that a template forks, and requests that wait until the disk has room.

On a full disk, ranks that start again would fail again, and use up the restarts of the run. The first start of a run does not wait:
whoever launches it learns why it fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable

from engine.linux.processes import MARK
from engine.node.agent.wire import Any, Message

MPI_OWN = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "HYDI_")
"""Prefixes of variables that make a process part of an MPI job."""


def environment_of(message: Message, mark: str) -> dict[str, str]:
    """Returns the node's variables, overridden by the profile's. The profile's defaults apply where the node sets nothing. `message`: a
    request that starts processes."""
    # The agent itself may run inside an MPI job to which the ranks do not belong.
    own = {name: value for name, value in os.environ.items() if not name.startswith(MPI_OWN)}
    env = {**message["env_defaults"], **own, **message["env"], MARK: mark}
    first = [("PYTHONPATH", message["library"])]
    first += [("LD_LIBRARY_PATH", path) for path in library_path(message)]
    for name, folder in first:
        env[name] = folder + (os.pathsep + env[name] if env.get(name) else "")
    return env


def library_path(message: Message) -> list[str]:
    """Returns folders for LD_LIBRARY_PATH. Libraries that ranks load by another name than on this node get a symlink."""
    folder, links = message.get("library_path", ["", {}])
    for name, target in links.items():
        folder = os.path.abspath("libraries")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, os.path.join(folder, name))
    return [folder] if folder else []


class Job:
    """A process that a template is asked to fork.

    Args:
        files: opens files whose descriptors are sent; they are closed after that.
        started: called with pid and start time.
        refused: called if no template can fork it, so that it must be started without one.
        dropped: called if it is no longer wanted.
    """

    def __init__(
        self,
        request: Message,
        files: Callable[[], Iterable[Any]],
        started: Callable[[int, int], None],
        refused: Callable[[], None],
        dropped: Callable[[], None],
    ) -> None:
        self.request, self.files = request, files
        self.started, self.refused, self.dropped = started, refused, dropped


FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = 1 << 16  # bytes that must fit before ranks start
INTERVAL = 1.0  # seconds between two looks


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
        """Keeps a request for later if there is no room for it. Returns whether it waits. `message`: the request, with its attempt.
        `folder`: where its files will be."""
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
