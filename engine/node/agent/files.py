"""Files and named pipes of ranks: opened, measured and read without ever waiting for what is in their place."""

from __future__ import annotations

import io
import os
import stat

from engine.node.agent.wire import MAX_FRAME


def open_log(path: str) -> io.BufferedWriter:
    """A private file that is appended to."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb")


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors and empties the list, so that none is closed twice."""
    while descriptors:
        os.close(descriptors.pop())


def first_words(path: str) -> str:
    """The beginning of a program's log on one line: a mistake comes before what follows from it."""
    try:
        with open(path, "rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return "it said nothing"
    words = [line.strip() for line in lines if line.strip().strip("-")]
    return " ".join(words)[:400] or "it said nothing"


def size_of(descriptor: int) -> int:
    """Bytes of an open file."""
    return os.fstat(descriptor).st_size


def last_bytes(descriptor: int, size: int) -> bytes:
    """At most `size` bytes from the end of an open file."""
    return os.pread(descriptor, size, max(0, size_of(descriptor) - size))


def file_size(path: str) -> int:
    """In bytes; 0 where there is no file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def read_from(path: str, begin: int, most: int) -> str:
    """At most `most` bytes of a file from `begin` as text; empty where there is no file, or something else."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.pread(file, most, begin).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def wake(path: str) -> bool:
    """Writes a byte into a named pipe. Returns False where nobody reads it, where it is full, or where it is no pipe."""
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
    """Whether this node sees a file of the supervisor: then both share that folder.

    Args:
        wanted: its path and the SHA-256 of its content, or None.
    """
    if not wanted:
        return False
    import hashlib  # a boot on the supervisor's machine does not need it

    try:
        with open(wanted[0], "rb") as file:
            return hashlib.sha256(file.read(MAX_FRAME)).hexdigest() == wanted[1]
    except OSError:
        return False
