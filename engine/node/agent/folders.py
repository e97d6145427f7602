"""The folders of a run on a node, the agent's socket in them, and the lock that agent and warden hold together."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import time

KEEP_FILE = "keep"
"""A file in the agent's folder: what ranks wrote could not be stored elsewhere, so the folder must stay."""

FORGOTTEN_AFTER = 7 * 86400.0
"""Seconds without a change after which nobody comes back for the files of a run whose agent has ended."""


def runtime_folder() -> str:
    """The user's private folder for sockets on this node."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK | os.X_OK):
        return private_folder(os.path.join(base, "rankdeck"))
    return temporary_folder()


def temporary_folder() -> str:
    """The user's private folder for files of runs on a node that is not the supervisor's: on a local disk, not a shared one."""
    base = os.environ.get("TMPDIR") or "/tmp"
    return private_folder(os.path.join(base, f"rankdeck-{os.geteuid()}"))


def private_folder(folder: str) -> str:
    """Makes a folder that only this user can enter, or checks and closes the one that exists.

    Raises:
        RuntimeError: it belongs to another user, it contains something of another user, or another user can replace it.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found, parent = os.lstat(folder), os.stat(os.path.dirname(folder))
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} is not a folder of this user")
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise RuntimeError(f"any user can replace {folder}: every user can write to its parent folder")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            foreign = [one.path for one in entries if one.stat(follow_symlinks=False).st_uid != os.geteuid()]
        if foreign:
            raise RuntimeError(f"{foreign[0]} belongs to another user")
    return folder


def peer_of(wire: socket.socket) -> tuple[int, int]:
    """(pid, user id) of the process at the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def remove_forgotten(folder: str) -> None:
    """Removes what runs have left on this node whose supervisor has never come back for it.

    Args:
        folder: where the node keeps files of runs (`temporary_folder`); any other is left alone.
    """
    if os.path.basename(folder) != f"rankdeck-{os.geteuid()}":
        return
    import shutil  # an agent does not need it

    before = time.time() - FORGOTTEN_AFTER
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            with contextlib.suppress(OSError):  # its run, or another warden that tidies up, was faster
                paths = [os.path.join(parent, name) for parent, _, files in os.walk(entry.path) for name in files]
                is_old = all(os.lstat(path).st_mtime < before for path in paths)
                kept = os.path.exists(os.path.join(entry.path, KEEP_FILE))
                if is_old and not kept and (lock := take_lock(entry.path)) is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def socket_path(mark: str) -> str:
    """Where this run's agent listens, by the environment as it is now: the runtime folder goes away with a user's last session."""
    return os.path.join(runtime_folder(), f"agent-{mark}.sock")


def listen(folder: str, mark: str) -> socket.socket:
    """A listening socket for this user only. Its path is written into the run's folder, for logins with another environment."""
    path = socket_path(mark)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4)
    write_atomically(os.path.join(folder, "socket"), path.encode())
    return listener


def take_lock(folder: str) -> int | None:
    """The lock that warden and agent of one run on one node hold together; None where somebody has it."""
    lock = os.open(os.path.join(folder, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def write_atomically(path: str, data: bytes) -> None:
    """Replaces a file so that a reader sees the old or the new content, never a part."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)
