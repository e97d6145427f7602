"""Locks of files. The kernel releases a lock with the last process that has inherited its descriptor."""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from engine.linux.files import AnyPath


def try_lock(path: AnyPath, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """Takes the lock of a file without waiting. `flags`: of `os.open`. Returns the descriptor that holds the lock until it is closed; None
    if another process holds it. Raises OSError: the file can't be opened, or its file system has no locks."""
    lock = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        os.close(lock)
        raise
    return lock


def is_locked(path: AnyPath) -> bool:
    """Whether a process holds the lock of a file that exists. Raises OSError: as `try_lock`."""
    lock = try_lock(path, os.O_RDWR)
    if lock is not None:
        os.close(lock)
    return lock is None
