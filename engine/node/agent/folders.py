"""The folders of a run on a node, the agent's socket, and the lock that agent and warden hold together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from engine.linux.files import replace_file
from engine.linux.folders import login_folder, private_folder
from engine.linux.locks import try_lock
from engine.node.titles import show_title

AGENT_LOG, GIVEN_UP = "agent.log", "given_up"
"""The output of agents; and, if agents have ended again and again, a symlink whose target is the exit status of the last one. It stays
until a bridge has reported it."""

KEEP_FILE = "keep"  # while the agent's folder has it, the folder stays: output could not be stored elsewhere
TITLE = "title"  # file with the run and the node, as `ps` shows them: a launch that takes a standby changes it
TITLE_SIGNAL = signal.SIGUSR1  # makes warden and bridge show the new title
LONGEST = 48  # bytes of a folder's path that leave room for a socket's name: 107 for both
ABANDONED_AFTER = 7 * 86400.0  # seconds without a change after which the files of an ended agent are removed


def runtime_folder() -> str:
    """Returns the user's private folder for sockets on this node."""
    if base := login_folder():
        return private_folder(os.path.join(base, "rankdeck"))
    folder = temporary_folder()
    return folder if len(os.fsencode(folder)) <= LONGEST else private_folder(f"/tmp/rankdeck-{os.geteuid()}")


def temporary_folder() -> str:
    """Returns the user's private folder for files of runs on nodes other than the supervisor's: on a local disk, not a shared one."""
    base = os.environ.get("TMPDIR") or "/tmp"
    return private_folder(os.path.join(base, f"rankdeck-{os.geteuid()}"))


def remove_abandoned(folder: str) -> None:
    """Removes files of old runs whose supervisor has never returned to this node. `folder`: where the node keeps files of runs
    (`temporary_folder`); other folders are left unchanged."""
    if os.path.basename(folder) != f"rankdeck-{os.geteuid()}":
        return
    import shutil  # not needed by agents

    before = time.time() - ABANDONED_AFTER
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            with contextlib.suppress(OSError):  # its run, or another warden, removes it too
                paths = [os.path.join(parent, name) for parent, _, files in os.walk(entry.path) for name in files]
                is_old = all(os.lstat(path).st_mtime < before for path in paths)
                kept = os.path.exists(os.path.join(entry.path, KEEP_FILE))
                if is_old and not kept and (lock := take_lock(entry.path)) is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def keep_young(folder: str) -> None:
    """Sets the times of everything in a folder to now. Nodes remove old files from /tmp, and a run may take many days."""
    for parent, folders, files in os.walk(folder):
        for name in [".", *folders, *files]:
            with contextlib.suppress(OSError):  # it has just gone
                os.utime(os.path.join(parent, name), follow_symlinks=False)


def socket_path(mark: str) -> str:
    """Returns the path of the agent's socket. It depends on the environment: the runtime folder disappears with a user's last session."""
    return os.path.join(runtime_folder(), f"agent-{mark}.sock")


def listen(folder: str, mark: str) -> socket.socket:
    """Returns a listening socket for this user only. Its path is written into the run's folder, for logins with another environment. Raises
    OSError: for example, the disk is full. An earlier socket of the same path is left, unless the path itself can't be used. Raises
    RuntimeError: another user could reach the socket."""
    path, note = socket_path(mark), os.path.join(folder, "socket")
    if not holds(note, path):
        replace_file(note, os.fsencode(path))  # first: on a full disk, the earlier socket must stay
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    return listener


def holds(path: str, text: str) -> bool:
    """Whether a file has this content already. It need not be written then, which may fail on a full disk."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read() == os.fsencode(text)
    return False


def take_lock(folder: str) -> int | None:
    """Takes the lock that warden and agent of one run on one node share; None if it is taken."""
    try:
        return try_lock(os.path.join(folder, "agent.lock"))
    except OSError as error:
        raise RuntimeError(f"{folder} needs file locks (flock): {error.strerror}") from None


def note_title(title: str) -> bool:
    """Notes the run and the node of the processes in this working directory. Returns whether they have changed."""
    if holds(TITLE, title):
        return False
    with contextlib.suppress(OSError):
        replace_file(TITLE, title.encode())
        return True
    return False


def show_role(role: str) -> None:
    """Shows in `ps` the role of this process, its run and its node."""
    show_title(role, read_title())


def read_title() -> str:
    """Returns what `note_title` has written; empty if it could not."""
    with contextlib.suppress(OSError), open(TITLE) as file:
        return file.read()
    return ""
