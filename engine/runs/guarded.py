"""Reads files that may name programs to run: nobody else may be able to change or replace them."""

import os
import shlex
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from engine.core.errors import ProfileError

MAX_SIZE = 1 << 20  # largest file, in bytes
MAX_LINKS = 40  # symbolic links on the way to a file, as in Linux


def read_guarded(path: Path, owners: Collection[int], *, whole_way: bool) -> str | None:
    """The text of a file; None: there is none. Raises ProfileError: it can't be read, or another user could have written it. `owners`: the
    users who may be able to change it. `whole_way`: whether every folder and link on its path must belong to them, not only its own folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be read: {error.strerror}") from None
    try:
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode):
            raise ProfileError(str(path), None, "", "is not a file")
        _check(str(path), opened, owners)
        for one, found in _way_to(str(path)) if whole_way else [(str(path.parent), os.stat(path.parent))]:
            _check(one, found, owners)
        if whole_way and not os.path.samestat(opened, found):
            raise ProfileError(str(path), None, "", "was replaced at this moment", hint="try again")
        data = os.read(descriptor, MAX_SIZE + 1)
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_SIZE:
        raise ProfileError(str(path), None, "", "is larger than 1 MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProfileError(str(path), None, "", f"is not UTF-8 at byte {error.start}") from None


def _way_to(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The folders and symbolic links on the way to a file, from the root on; the file comes last."""
    here, parts, links = os.sep, path.split(os.sep)[::-1], 0
    yield here, os.lstat(here)
    while parts:
        here = os.path.normpath(os.path.join(here, parts.pop()))  # it has no link, so `..` is the folder above
        found = os.lstat(here)
        yield here, found
        if stat.S_ISLNK(found.st_mode) and (links := links + 1) <= MAX_LINKS:
            target = os.readlink(here)
            here = os.path.dirname(here)
            parts += target.split(os.sep)[::-1] if not os.path.isabs(target) else [*target.split(os.sep)[:0:-1], os.sep]


def _check(path: str, found: os.stat_result, owners: Collection[int]) -> None:
    """Raises ProfileError if another user can change a file, or replace what is in a folder."""
    if found.st_uid not in owners:
        raise ProfileError(path, None, "", "belongs to another user", hint="its owner decides which programs run")
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX  # others replace only what is their own
    if found.st_mode & 0o022 and not is_sticky and not stat.S_ISLNK(found.st_mode):
        hint = f"it decides which programs run: chmod go-w {shlex.quote(path)}"
        raise ProfileError(path, None, "", "can be written by other users", hint=hint)
