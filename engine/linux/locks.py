"""Locks of files. The kernel releases a lock with the last process that has inherited its descriptor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextlib.contextmanager
def alone(path: AnyPath, seconds: float) -> Iterator[bool]:
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


def is_locked(path: AnyPath) -> bool:
    """Whether a process holds the lock of a file that exists. Raises OSError: as `try_lock`."""
    lock = try_lock(path, os.O_RDWR)
    if lock is not None:
        os.close(lock)
    return lock is None
