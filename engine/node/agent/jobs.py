"""Processes to be started: their environment, and the job that a template forks."""

from __future__ import annotations

import contextlib
import os

from engine.linux.processes import MARK
from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    StartJob = Callable[["Job", Message, dict[str, str], dict[str, str]], None]
    """Arguments: a job, the message that requests it, the environment of all its processes, and additions for this process."""

MPI_OWN = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "HYDI_")
"""Prefixes of variables that make a process part of an MPI job."""


def environment_of(message: Message, mark: str) -> dict[str, str]:
    """Returns the node's variables, overridden by the profile's. The profile's defaults apply where the node sets nothing.

    Args:
        message: a request that starts processes.
    """
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
