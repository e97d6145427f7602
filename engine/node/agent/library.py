"""Unpacks the `rankdeck` package, which ranks import, on this node."""

from __future__ import annotations

import errno
import os

from engine.node.agent.wire import Message


def has_library(name: str) -> bool:
    """Whether the package of that name, made from its content, is here."""
    return os.path.exists(os.path.join("library", name))


def unpack_library(message: Message) -> None:
    """`library`: unpacks the package, completely or not at all.

    Raises:
        OSError: there is no room for it, say.
        RuntimeError: the archive holds something else than files and folders of its own.
    """
    import base64  # most boots find the package here already
    import io
    import tarfile

    target = os.path.join("library", message["name"])
    partial = f"{target}.{os.getpid()}.partial"
    os.makedirs(partial, mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(message["tar"]))) as archive:
        for member in archive.getmembers():
            is_own = not member.name.startswith("/") and ".." not in member.name.split("/")
            if not is_own or not (member.isfile() or member.isdir()):
                raise RuntimeError(f"the library holds {member.name!r}")
        archive.extractall(partial)
    try:
        os.rename(partial, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
