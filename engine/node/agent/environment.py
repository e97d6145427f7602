"""The environment of what an agent starts."""

from __future__ import annotations

import contextlib
import os

from engine.node.agent.processes import MARK
from engine.node.agent.wire import Message

MPI_OWN = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "HYDI_")
"""Beginnings of the variables by which MPI tells a process that it belongs to a job."""


def environment_of(message: Message, mark: str) -> dict[str, str]:
    """What the node has, then what the profile sets; the profile's defaults hold only where the node sets nothing.

    Args:
        message: that asks for processes.
        mark: of the run.
    """
    # The agent may run inside an MPI job, which is not the ranks'.
    own = {name: value for name, value in os.environ.items() if not name.startswith(MPI_OWN)}
    env = {**message["env_defaults"], **own, **message["env"], MARK: mark}
    first = [("PYTHONPATH", message["library"])]
    first += [("LD_LIBRARY_PATH", path) for path in library_path(message)]
    for name, folder in first:
        env[name] = folder + (os.pathsep + env[name] if env.get(name) else "")
    return env


def library_path(message: Message) -> list[str]:
    """Where ranks look for libraries first. A library that they ask for by another name than it has here gets a link."""
    folder, links = message.get("library_path", ["", {}])
    for name, target in links.items():
        folder = os.path.abspath("libraries")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, os.path.join(folder, name))
    return [folder] if folder else []
