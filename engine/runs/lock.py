"""Locks: of a run, whose folder belongs to the holder, a supervisor, until its process ends; and of files that several commands change."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def alone(path: Path, seconds: float) -> Iterator[bool]:
    """Lets one process at a time go on, while it holds the lock of a file. Gives False if another process has held it for `seconds`. Where no file
    can be made, or none can be locked, each process goes on."""
    lock, end, is_alone = None, time.monotonic() + seconds, True
    with contextlib.suppress(OSError):
        while (lock := try_lock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)) is None and time.monotonic() < end:
            time.sleep(0.02)
        is_alone = lock is not None
    try:
        yield is_alone
    finally:
        if lock is not None:
            os.close(lock)
