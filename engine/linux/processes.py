"""Starting, finding, signalling and reaping processes, in a way that a reused number is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "RANKDECK_MARK"  # variable that every process of a run inherits from its rank; its value is unique to the run
PF_EXITING = 0x4  # flag of a Linux task that is ending (include/linux/sched.h), in the ninth field of `/proc/PID/stat`


def become_subreaper() -> None:
    """Makes orphans below this process its children instead of init's (Linux, prctl 36)."""
    import ctypes  # not needed by bridges and guards

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def stat_fields(pid: int) -> list[bytes]:
    """Returns the fields of `/proc/PID/stat` from the third on, the state; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def process_status(pid: int) -> tuple[int, str, int] | None:
    """Returns (start time, state letter, parent) of a process, or None. The start time distinguishes processes with the same number."""
    fields = stat_fields(pid)
    return (int(fields[19]), fields[0].decode(), int(fields[1])) if fields else None


def is_exiting(pid: int) -> bool:
    """Whether a process is on its way out: its status is fixed, so a signal does not change it. It may not be reapable yet."""
    fields = stat_fields(pid)
    return not fields or fields[0] in b"ZX" or bool(int(fields[6]) & PF_EXITING)


def start_time(pid: int) -> int:
    """Returns the start time of a child that is not reaped yet."""
    found = process_status(pid)
    return found[0] if found else 0


def lives(pid: int, start: int) -> bool:
    """Whether a process with this number and start time runs; zombies do not."""
    found = process_status(pid)
    return found is not None and found[0] == start and found[1] not in "ZX"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    return (process_status(pid) or (0, ""))[1] == "T"


def program_name(pid: int) -> str:
    """Returns the name of the program that a process runs, at most 15 characters; empty: there is no such process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().rstrip("\n")
    return ""


def marked(marks: list[str]) -> list[int]:
    """Returns all processes with one of this run's marks in their environment, and so children whose parents have ended."""
    wanted, found = [("\0" + MARK + "=" + mark + "\0").encode() for mark in marks], []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # ended, or another user's
            variables = b"\0" + file.read()
            if any(variable in variables for variable in wanted):
                found.append(int(name))
    return found


def all_children() -> dict[int, list[int]]:
    """Returns the children of every process that has some, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process_status(int(name))
            if found is not None and found[1] not in "ZX":
                children.setdefault(found[2], []).append(int(name))
    return children


def below(root: int, children: dict[int, list[int]], keep: set[int]) -> list[int]:
    """Returns all processes below `root`, without those in `keep`, whose children are included."""
    found: list[int] = []
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            if pid not in keep:
                found.append(pid)
    return found


def kill_group(pid: int, number: int) -> None:
    """Signals the process group that `pid` leads, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_quietly(pid: int, number: int) -> None:
    """Signals a process, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_process(pid: int, start: int, number: int) -> bool:
    """Signals a process if it is still the one that started then. Returns whether it is. `start`: as `process_status` has told it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None  # novermin: Python 3.9
        try:
            if not lives(pid, start):
                return False
            if handle is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(handle, number)  # novermin
            return True
        finally:
            if handle is not None:
                os.close(handle)
    return False


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


def outlive_signals() -> None:
    """Ignores the signals that systemd, a login and a scheduler send to all processes before they end them: ranks decide what these mean,
    and this process is needed until they have ended. It sets handlers, because a program that it starts would inherit SIG_IGN."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def next_zombie() -> int | None:
    """Returns the pid of a child that has ended and is not reaped, or None."""
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

    Only the agent reaps, so the Popen object is told that the process has ended: otherwise `subprocess` would poll the number later,
    when it may belong to another process.
    """
    import subprocess  # not needed by bridges and guards

    popen = subprocess.Popen(argv, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    popen.returncode = 0
    return popen.pid


def sweep(root: int, keep: set[int], marks: list[str], seconds: float) -> list[int]:
    """Kills everything below `root`, with one of this run's marks, or below a process with one, but not `keep`, until nothing is left or
    time is up. Returns the processes that are left."""
    deadline = time.monotonic() + seconds
    while True:
        own, children = marked(marks), all_children()
        left = sorted({*own, *(pid for top in [root, *own] for pid in below(top, children, keep))} - keep)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            kill_quietly(pid, signal.SIGKILL)
        while True:
            zombie = next_zombie()
            if zombie is None or zombie in keep:
                break
            reap(zombie)
        time.sleep(0.01)


def boot_id() -> str:
    """Returns an id of this boot of the kernel: pids of another boot are invalid."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


STOPPED_LIMIT = 10
"""Looks, one a second, in which a process may be found stopped. They are counted instead of time: where a batch system suspends a
whole job, this process is stopped too."""


class StoppedWatch:
    """Counts for how many looks processes have been stopped."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def look(self, pids: set[int]) -> list[int]:
        """Looks at processes, about once a second. Returns those that it has ended. `pids`: numbers of processes that are not reaped, so
        that no other process has them."""
        counts = {pid: self._counts.get(pid, 0) + 1 for pid in pids if is_stopped(pid)}
        over = [pid for pid, count in counts.items() if count >= STOPPED_LIMIT]
        for pid in over:
            kill_quietly(pid, signal.SIGKILL)
        self._counts = {pid: count for pid, count in counts.items() if pid not in over}
        return over
