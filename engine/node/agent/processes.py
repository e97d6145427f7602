"""Processes by number: started, found, signalled and reaped, so that a number that was given away is never hit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "RANKDECK_MARK"
"""Environment variable that every process of a run inherits from its rank. Its value is unique to the run."""


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's (Linux, prctl 36)."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def process_mark(pid: int) -> tuple[int, str, int] | None:
    """(start time, state letter, parent) of a process, or None. The start time tells it from a later one of its number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0].decode(), int(fields[1])


def start_time(pid: int) -> int:
    """Start time of a child that is not reaped yet."""
    mark = process_mark(pid)
    return mark[0] if mark else 0


def lives(pid: int, start: int) -> bool:
    """Whether a process of that number and start time runs; a zombie does not."""
    mark = process_mark(pid)
    return mark is not None and mark[0] == start and mark[1] not in "ZX"


def marked(marks: list[str]) -> list[int]:
    """Every process with one of this run's marks in its environment. Nothing else finds a child whose parents have ended."""
    wanted, found = {(MARK + "=" + mark).encode() for mark in marks}, []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # ended, or somebody else's
            if wanted.intersection(file.read().split(b"\0")):
                found.append(int(name))
    return found


def descendants(root: int, spare: set[int]) -> list[int]:
    """Every process below `root`, without zombies and without those in `spare`, whose children are included."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            mark = process_mark(int(name))
            if mark is not None and mark[1] not in "ZX":
                children.setdefault(mark[2], []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            if pid not in spare:
                found.append(pid)
    return found


def kill_group(pid: int, number: int) -> None:
    """Signals the process group that `pid` leads, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_quietly(pid: int, number: int) -> None:
    """Signals a process, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


def next_zombie() -> int | None:
    """The pid of a child that has ended and is not reaped yet, or None."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def reap(pid: int) -> int:
    """Reaps a zombie. Returns its exit code, or minus the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start_process(argv: list[str], **options: Any) -> int:
    """Starts a process in a session of its own. Returns its pid.

    The agent alone reaps, so the Popen object is told that the process is done: `subprocess` would otherwise poll an unreaped
    one later, when its number may be another process's.
    """
    popen = subprocess.Popen(argv, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    popen.returncode = 0
    return popen.pid


def sweep(root: int, spare: set[int], marks: list[str], seconds: float) -> list[int]:
    """Kills everything below `root` or with one of this run's marks, until nothing is left or the time is over.

    Returns:
        What is left.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = sorted({*descendants(root, spare), *marked(marks)} - spare)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            kill_quietly(pid, signal.SIGKILL)
        while True:
            zombie = next_zombie()
            if zombie is None or zombie in spare:
                break
            reap(zombie)
        time.sleep(0.01)
