"""Where Open MPI puts the shared memory of this process, so that what killed processes have left can be removed.

Open MPI makes a file in /dev/shm for each process, and only that process removes it; the file's name does not tell whether the process
lives. So each process gets a folder of its own, which it keeps locked: the owner of a folder without a lock is dead. The
supervisor of a run removes such folders too (`engine.runs.ends.shared_memory`).
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

SHARED_MEMORY = "/dev/shm"

VARIABLES = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
"""Variables of Open MPI 5 and 4 with the folder of these files."""

_folder = ""  # the folder of this process
_lock = -1  # the file that is open, and so locked, as long as this process lives


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """If MPI is initialised in this `with` statement, Open MPI uses a folder of this process, unless the user has chosen one."""
    chosen = os.environ.keys() & {*VARIABLES}
    if not chosen and "OMPI_COMM_WORLD_RANK" in os.environ:
        with contextlib.suppress(OSError):  # then Open MPI does what it does by itself
            _make(os.path.join(SHARED_MEMORY, f"rankdeck-{os.geteuid()}"))
    wanted = VARIABLES if _folder else ()
    os.environ.update(dict.fromkeys(wanted, _folder))
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


def remove() -> None:
    """Removes the folder of this process, which has finalised MPI."""
    global _folder, _lock
    if _folder:
        shutil.rmtree(_folder, ignore_errors=True)
        os.close(_lock)
        _folder, _lock = "", -1


def _make(base: str) -> None:
    """Makes the folder of this process, and removes those of dead processes. Raises OSError."""
    global _folder, _lock
    with contextlib.suppress(FileExistsError):
        os.mkdir(base, 0o700)
    found = os.lstat(base)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{base} is not a private folder of this user")
    sweep(base)
    while not _folder:
        folder = tempfile.mkdtemp(dir=base)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.path.isdir(folder):  # no other process has taken it for one of the dead, before it was locked
            _folder, _lock = folder, lock
        else:
            os.close(lock)


def sweep(base: str) -> None:
    """Removes the folders in a folder that no process has locked."""
    for entry in os.scandir(base):
        with contextlib.suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)
