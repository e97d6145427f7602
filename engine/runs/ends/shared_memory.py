"""Removes what killed ranks have left in shared memory; `rankdeck.c10d._mpi.segments` explains why no process uses it."""

import contextlib
import fcntl
import os
import shutil
import stat

SHARED_MEMORY = "/dev/shm"


def sweep_shared_memory(root: str = SHARED_MEMORY) -> None:
    """Removes the folders of this user's processes that have died on this machine. `root`: where the folder of this user's folders is."""
    base = os.path.join(root, f"rankdeck-{os.geteuid()}")
    try:
        found = os.lstat(base)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        folders = list(os.scandir(base))
    except OSError:
        return
    for entry in folders:
        with contextlib.suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)
    with contextlib.suppress(OSError):  # others are in it
        os.rmdir(base)
