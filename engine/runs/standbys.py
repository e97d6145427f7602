"""The folders of standbys, beside those of runs; and what a process hands down to its children."""

import contextlib
import os
import resource
import secrets
import shutil
import socket
import time
from pathlib import Path

import msgspec

from engine import __version__
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import Circumstances
from engine.installed import COMMAND, LIBRARY
from engine.linux.files import replace_file
from engine.linux.locks import try_lock
from engine.linux.processes import MARK
from engine.runs.paths import STANDBY, RunPaths, private_folder, runs_folder

START_LIMIT = 60.0  # seconds within which a standby takes its lock, even on a slow machine

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def circumstances() -> Circumstances:
    """The circumstances of this process."""
    status = Path("/proc/self/status").read_text(errors="replace")
    files = (path for folder in (COMMAND.parent / "engine", LIBRARY) for path in folder.rglob("*.py"))
    newest = max(path.stat().st_mtime_ns for path in files)  # an upgrade may keep the version
    return msgspec.structs.replace(
        place(code=f"{__version__} {newest}"),
        environ={name: value for name, value in os.environ.items() if name != MARK},
        limits=tuple(resource.getrlimit(number) for number in _LIMITS),
        umask=next((line for line in status.splitlines() if line.startswith("Umask:")), ""),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def place(code: str) -> Circumstances:
    """The circumstances that a process can't change, or can only make worse."""
    return Circumstances(
        environ={},
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        cgroups=Path("/proc/self/cgroup").read_text(errors="replace"),
        namespaces=tuple(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES),
        code=code,
    )


def new_standby(plan: LaunchPlan) -> RunPaths:
    """Makes the folder of a standby for launches like `plan`. Raises OSError or RankdeckError: it can't be made."""
    runs = private_folder(runs_folder())
    remove_stale_standbys(runs)
    folder = runs / f"{STANDBY}{socket.gethostname()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    paths = RunPaths(folder)
    replace_file(paths.plan, msgspec.json.encode(plan))
    return paths


def remove_stale_standbys(runs: Path) -> None:
    """Removes folders of killed standbys of this host: another host may share this home, but perhaps not its locks."""
    own = socket.gethostname()
    for folder in runs.glob(f"{STANDBY}*"):
        if folder.name.removeprefix(STANDBY).rpartition("-")[0] != own:
            continue
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < START_LIMIT  # it may not have taken its lock yet
            lock = try_lock(RunPaths(folder).lock, os.O_RDWR | (0 if is_new else os.O_CREAT))
            if lock is not None:
                try:
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)
