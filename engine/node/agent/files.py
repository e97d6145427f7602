"""Files and named pipes of ranks, which are opened and read without blocking on whatever is in their place; the ranks' library."""

from __future__ import annotations

import errno
import io
import os
import stat

from engine.linux.files import open_regular, read_part
from engine.node.agent.wire import MAX_FRAME, Message

IN_MODIFY = 2  # of inotify: a file was written or cut
MOST_OUTPUT = 4000  # bytes of the last output of our own processes that are reported


def open_watched(path: str) -> int:
    """Opens a file of a rank for reading. Anything but a regular file counts as empty. Raises OSError: the file can't be made."""
    try:
        return open_regular(path, os.O_RDONLY | os.O_CREAT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def note_writes(descriptors: list[int]) -> int:
    """Returns a descriptor (inotify) that has something to read once an open file was written; -1: the kernel can't tell.

    The writers are processes of this node, so its kernel knows of each write, also on a file system that other machines share.
    """
    import ctypes  # bridges need none

    libc = ctypes.CDLL(None)
    notes: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    for one in descriptors:
        if libc.inotify_add_watch(notes, b"/proc/self/fd/%d" % one, IN_MODIFY) < 0:
            if notes >= 0:
                os.close(notes)
            return -1
    return notes


def open_log(path: str) -> io.BufferedWriter:
    """Opens a private file for appending. Raises OSError."""
    return open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb")


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors, and empties the list so that none is closed twice."""
    while descriptors:
        os.close(descriptors.pop())


def first_words(path: str) -> str:
    """Returns the beginning of a program's log on one line, because the first error is usually the cause."""
    words = [line.strip() for line in read_from(path, 0, 4096).splitlines() if line.strip().strip("-")]
    return " ".join(words)[:400] or "it said nothing"


def size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def last_bytes(descriptor: int, size: int) -> bytes:
    """Returns at most `size` bytes from the end of an open file."""
    return os.pread(descriptor, size, max(0, size_of(descriptor) - size))


def file_size(path: str) -> int:
    """Returns bytes; 0 if there is no file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def read_from(path: str, begin: int, most: int) -> str:
    """Returns at most `most` bytes of a file from `begin` as text; empty if it is not a readable file."""
    try:
        return read_part(path, most, begin).decode(errors="replace")
    except OSError:
        return ""


def last_output(path: str) -> str:
    """Returns the end of a file as text; empty if it is not a readable file."""
    return read_from(path, max(0, file_size(path) - MOST_OUTPUT), MOST_OUTPUT)


def wake(path: str) -> bool:
    """Writes a byte into a named pipe. Returns False if it has no reader, is full, or is not a pipe."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"\n") == 1
    except OSError:
        return False
    finally:
        os.close(pipe)


def is_same_file(wanted: list[str] | None) -> bool:
    """Whether this node sees a file of the supervisor, so that both share its folder. `wanted`: path and SHA-256, or None."""
    if not wanted:
        return False
    import hashlib  # not needed on the supervisor's machine

    try:
        return hashlib.sha256(read_part(wanted[0], MAX_FRAME)).hexdigest() == wanted[1]
    except OSError:
        return False


def has_library(name: str) -> bool:
    """Whether the `rankdeck` package for ranks is unpacked here. Its name is a hash of its content."""
    return os.path.exists(os.path.join("library", name))


def unpack_library(message: Message) -> None:
    """`library`: unpacks the package, completely or not at all. Raises OSError: for example, the disk is full. Raises RuntimeError: the
    archive contains anything but files and folders below its root."""
    import base64  # not needed if the package is unpacked already
    import io
    import tarfile

    target = os.path.join("library", message["name"])
    partial = f"{target}.{os.getpid()}.partial"
    os.makedirs(partial, mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(message["tar"]))) as archive:
        for member in archive.getmembers():
            is_own = not member.name.startswith("/") and ".." not in member.name.split("/")
            if not is_own or not (member.isfile() or member.isdir()):
                raise RuntimeError(f"the library contains {member.name!r}")
        archive.extractall(partial)
    try:
        os.rename(partial, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
