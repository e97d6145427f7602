"""The lock of a run: whoever holds it owns the run's folder. A supervisor holds it until its process ends."""

import os

from engine.core.errors import CheckError, SupervisorError
from engine.linux.locks import try_lock
from engine.runs.paths import RunPaths
from engine.runs.record import refuse_elsewhere


def take_lock(paths: RunPaths) -> int:
    """Takes the lock of a run without waiting. Returns the descriptor that holds the lock until it is closed. Raises SupervisorError:
    another process holds it, or the run belongs to another host; CheckError: the file system has no locks."""
    refuse_elsewhere(paths, "attach")
    try:
        lock = try_lock(paths.lock)
    except OSError as error:
        raise CheckError(
            f"the file system of {paths.folder} does not support file locks (flock): {error.strerror}",
            hint="set RANKDECK_HOME to a folder on another file system, such as a local disk",
        ) from None
    if lock is None:
        raise SupervisorError(f"run {paths.run} already has a supervisor")
    return lock


def is_taken(paths: RunPaths) -> bool:
    """Whether another process holds the lock of a run: a supervisor, maybe one that does not listen yet, or a command that removes it. Raises
    SupervisorError: the run belongs to another host; CheckError: the file system has no locks."""
    refuse_elsewhere(paths, "attach")
    try:
        os.close(take_lock(paths))
    except SupervisorError:
        return True
    return False
