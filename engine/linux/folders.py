"""Folders that only their user can enter. Other users may have made one of the same name first, or may be able to replace it."""

import contextlib
import os
import stat


def private_folder(folder: str) -> str:
    """Creates a folder that only this user can enter, or checks and closes the existing one.

    Folders above it that do not exist become private too, with any umask. Raises RuntimeError: it belongs to another user, it contains
    something of another user, or another user can replace it. Raises OSError: it can't be made."""
    make_folders(folder)
    found, parent = os.lstat(folder), os.stat(os.path.dirname(folder) or ".")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} is not a folder of this user")
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise RuntimeError(f"any user can replace {folder}: every user can write to {os.path.dirname(folder)}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            foreign = [one.path for one in entries if one.stat(follow_symlinks=False).st_uid != os.geteuid()]
        if foreign:
            raise RuntimeError(f"{foreign[0]} belongs to another user")
    return folder


def make_folders(folder: str) -> None:
    """Makes a folder and those above it that do not exist, each for this user only."""
    above = os.path.dirname(folder)
    if above and not os.path.isdir(above):
        make_folders(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def login_folder() -> str:
    """Returns `$XDG_RUNTIME_DIR`; empty: it is not set, or it is not a folder that this user alone can write to.

    `sudo` and `su` may leave the variable of another user in the environment.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        found = os.stat(folder) if os.path.isabs(folder) else None
    except OSError:
        return ""
    usable = found is not None and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return folder if usable and os.access(folder, os.W_OK | os.X_OK) else ""
