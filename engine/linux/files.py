"""Opens files without blocking, even if a pipe has replaced them, and replaces files as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    AnyPath = Union[str, os.PathLike[str]]

NOT_REGULAR = "it is not a regular file"

MAX_FILE = 1 << 27  # bytes of the largest file of a run that is read whole: its curves
_IS_ANOTHER = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # of a link, a socket, a pipe without a reader, a folder


def open_regular(path: AnyPath, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file, and returns its descriptor. Never blocks, even if a rank has replaced the file by a pipe, device or link.
    `flags`: of `os.open`. A new file is for its owner only. Raises OSError: there is no such file, or (EINVAL) it is not a regular one."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _IS_ANOTHER:
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    os.set_blocking(descriptor, True)  # a rank may inherit it
    return descriptor


def read_part(path: AnyPath, size: int, begin: int = 0) -> bytes:
    """At most `size` bytes of a regular file from `begin`. Raises OSError: it can't be read, or is not a regular file."""
    descriptor = open_regular(path)
    try:
        return os.pread(descriptor, size, begin)
    finally:
        os.close(descriptor)


def read_file(path: AnyPath, most: int = MAX_FILE) -> bytes:
    """The content of a regular file. `most`: bytes that it may have. Raises OSError: it can't be read, is not a regular file, or is larger."""
    with open(open_regular(path), "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, "it is too large", str(path))
        return file.readall()


def replace_file(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file so that readers see the old or the new content, never a part. Raises OSError: for example, the disk is full. It names
    the path."""
    partial = f"{os.fspath(path)}.{os.getpid()}.partial"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        os.replace(partial, path)
    except OSError as error:  # the error of a write names no file
        with contextlib.suppress(OSError):
            os.unlink(partial)  # on a full disk it takes room
        raise OSError(error.errno, error.strerror, str(path)) from None
