"""Finds, reads and changes the user's `config.toml`. Its command is run, so nobody else may be able to write the file."""

import contextlib
import fcntl
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.core.errors import ProfileError
from engine.core.plan.document.places import Places
from engine.core.settings import Settings, parse_settings
from engine.linux.files import replace_file
from engine.linux.folders import make_folders
from engine.runs.paths import settings_file

MAX_SIZE = 1 << 20  # largest file, in bytes
LOCK_SECONDS = 5.0  # how long a change waits for one of another process, which takes milliseconds


def read_settings() -> tuple[Settings, Places]:
    """The user's settings, and where each is written. Without a file: the defaults. Raises ProfileError: the file can't be read, another user could
    have written it, or something in it is wrong."""
    path = settings_file()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Settings(), Places(str(path), {})
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be read: {error.strerror}") from None
    try:
        _check_private(path, os.fstat(descriptor))
        _check_folder(path.parent, os.stat(path.parent))
        data = os.read(descriptor, MAX_SIZE + 1)
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_SIZE:
        raise ProfileError(str(path), None, "", "is larger than 1 MiB")
    try:
        return parse_settings(data.decode(), file=str(path))
    except UnicodeDecodeError as error:
        raise ProfileError(str(path), None, "", f"is not UTF-8 at byte {error.start}") from None


def keep_settings(values: Mapping[tuple[str, ...], object]) -> Path:
    """Like `change_settings`, for values that do not depend on the current ones."""
    return change_settings(lambda _: values)


def change_settings(change: Callable[[Settings], Mapping[tuple[str, ...], object]]) -> Path:
    """Writes values into the user's settings, whose other lines stay as they are. A new file is private. Changes of other processes wait.

    Args:
        change: returns values by their keys, as in `("look", "charts")`, for the settings as they are.

    Returns:
        The file.

    Raises:
        ProfileError: something is wrong with the settings, which are not changed then, or they can't be written.
    """
    import tomlkit

    path = settings_file()
    try:
        make_folders(str(path.parent))
        with _alone(path):
            values = change(read_settings()[0])
            document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
            for (*tables, key), value in values.items():
                table: Any = document
                for name in tables:
                    table = table.setdefault(name, tomlkit.table())
                table[key] = value
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
            replace_file(path.resolve(), tomlkit.dumps(document).encode(), mode)  # a symbolic link stays one
    except OSError as error:
        raise ProfileError(str(path), None, "", f"can't be written: {error.strerror}") from None
    return path


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process changes the file meanwhile, unless its file system has no locks. Raises OSError: the file of the lock can't be made;
    ProfileError: another process has held the lock for `LOCK_SECONDS`."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while not _is_locked(lock):
            if time.monotonic() > end:
                raise ProfileError(str(path), None, "", "another rankdeck is changing it", hint="try again")
            time.sleep(0.01)
        yield
    finally:
        os.close(lock)


def _is_locked(lock: int) -> bool:
    with contextlib.suppress(OSError):  # this file system has no locks, so go on without one
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ProfileError(str(path), None, "", "is not a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise ProfileError(str(path), None, "", "belongs to another user", hint="replace it by a file of your own")
    if status.st_mode & 0o022:
        hint = f"it may name a command that rankdeck runs: chmod go-w {shlex.quote(str(path))}"
        raise ProfileError(str(path), None, "", "can be written by other users", hint=hint)


def _check_folder(folder: Path, status: os.stat_result) -> None:
    """Refuses a folder in which another user could replace the file."""
    is_open = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    if is_open or status.st_uid not in (os.geteuid(), 0):
        hint = f"chmod go-w {shlex.quote(str(folder))}"
        raise ProfileError(str(folder), None, "", "can be written by other users", hint=hint)
