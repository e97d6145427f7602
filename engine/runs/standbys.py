"""The folders of standbys, beside those of runs: making, finding and ending them."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine import __version__
from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import Circumstances
from engine.installed import COMMAND, LIBRARY
from engine.linux.files import replace_file
from engine.linux.locks import is_locked, try_lock
from engine.linux.processes import signal_process
from engine.runs.paths import STANDBY, RunPaths, private_folder, runs_folder
from engine.runs.record import find_value

START_LIMIT = 60.0
"""Seconds within which a standby takes its lock, even on a slow machine."""

MARK = "RANKDECK_MARK"
"""Variable by which an agent finds processes of its run; see `engine.node.agent`."""

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class StandbyNote(msgspec.Struct, frozen=True, kw_only=True):
    """`standby.json`: a standby that waits.

    `start`: start of its process, in clock ticks since boot, because another process may get its pid; `key`: names the launches that it
    can serve; `until`: its end, in seconds since the epoch, or 0: it ends with the app that started it; `socket`: where it listens; empty
    for a standby of the app.
    """

    pid: int
    start: int
    python: str
    key: str
    until: float = 0.0
    socket: str = ""


def circumstances() -> Circumstances:
    """The circumstances of this process."""
    status = Path("/proc/self/status").read_text(errors="replace")
    return Circumstances(
        environ={name: value for name, value in os.environ.items() if name != MARK},
        limits=tuple(resource.getrlimit(number) for number in _LIMITS),
        umask=next((line for line in status.splitlines() if line.startswith("Umask:")), ""),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cgroups=Path("/proc/self/cgroup").read_text(errors="replace"),
        namespaces=tuple(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES),
        code=f"{__version__} {_newest_file()}",
    )


def _newest_file() -> int:
    """When a file of this rankdeck changed last: an upgrade may keep the version."""
    folders = {COMMAND.parent / "engine", LIBRARY}
    return max(path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*.py"))


def new_standby(plan: LaunchPlan) -> RunPaths:
    """Makes the folder of a standby for launches like `plan`. Raises OSError or RankdeckError: it can't be made."""
    runs = private_folder(runs_folder())
    remove_stale_standbys(runs)
    folder = runs / f"{STANDBY}{socket.gethostname()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    paths = RunPaths(folder)
    replace_file(paths.plan, msgspec.json.encode(plan))
    return paths


def standbys() -> Iterator[tuple[RunPaths, StandbyNote]]:
    """The living standbys of this host."""
    for folder in _own_folders(runs_folder()):
        paths = RunPaths(folder)
        # Written when the lock is held: one that has only just begun must not find it taken.
        if (standing := find_value(paths.standing, StandbyNote)) is not None and has_process(paths):
            yield paths, standing


def has_process(paths: RunPaths) -> bool:
    """Whether a process holds the lock of a standby's folder."""
    try:
        return is_locked(paths.lock)
    except OSError:
        return False


def end_standby(paths: RunPaths, standing: StandbyNote) -> bool:
    """Asks a standby to end. If it has ended already, nothing happens, even if another process has its number.

    Returns:
        Whether the standby was asked.
    """
    if not (has_process(paths) and signal_process(standing.pid, standing.start, signal.SIGTERM)):
        return False
    signal_process(standing.pid, standing.start, signal.SIGCONT)  # a stopped one would not see the other
    return True


def remove_stale_standbys(runs: Path) -> None:
    """Removes folders and sockets of killed standbys. A new standby may not have taken its lock yet."""
    for folder in _own_folders(runs):
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < START_LIMIT
            lock = try_lock(RunPaths(folder).lock, os.O_RDWR | (0 if is_new else os.O_CREAT))
            if lock is not None:
                try:
                    _remove_socket(RunPaths(folder))
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)


def _remove_socket(paths: RunPaths) -> None:
    """Removes the socket of a killed standby: where this login has it, or in the runtime folder of the login that started it."""
    with contextlib.suppress(FileNotFoundError, RankdeckError):
        paths.socket.unlink()
    standing = find_value(paths.standing, StandbyNote)
    if standing is not None and Path(standing.socket).name == paths.socket.name:
        with contextlib.suppress(OSError):
            Path(standing.socket).unlink()


def _own_folders(runs: Path) -> list[Path]:
    """Folders of this host: another may share this home, but perhaps not the locks in it."""
    own = socket.gethostname()
    return [path for path in runs.glob(f"{STANDBY}*") if path.name.removeprefix(STANDBY).rpartition("-")[0] == own]
