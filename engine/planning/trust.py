"""Decides what may start for a profile, and remembers what the user has launched or trusted.

A profile can name programs, and a folder may come from anyone. A profile passes if it is shipped, or lies in a folder into which only the
user can write, or was launched or trusted as it is now. The other profiles start nothing. A profile that passes still
runs no program of the current folder, until the user has launched from that folder or has trusted it.

Rankdeck remembers a digest of the profile's path, content, folder and owners, and of the files that it names in its folder: hostfile, Python
and words of commands. The code inside an environment and the modules of a script are not covered.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from engine.core.catalogue import ProfileEntry
from engine.core.errors import RankdeckError
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Launch, Layout, Profile
from engine.gate import CLOSED, LAUNCHED, Permit, inside
from engine.linux.files import open_regular, read_file, replace_file
from engine.planning.profile_paths import other_project, with_absolute_paths
from engine.planning.pythons.training_python import pythons_beside
from engine.runs.paths import private_folder, state_folder

FOREIGN = ("here", "shared", "file", "command")  # sources of profiles that somebody else may have written
MOST = 20_000  # profiles that are remembered; with more, the older half is forgotten
LARGEST = 1 << 26  # bytes of a file that a profile names and whose content is read: an interpreter has 30 MB


def permit_of(entry: ProfileEntry | None) -> Permit:
    """The permit of a profile. `entry`: None while the user types the profile. Reads files."""
    if entry is not None and entry.profile is None:
        return CLOSED
    if entry is not None and _digest(entry) in _remembered():
        return LAUNCHED
    if entry is not None and entry.source in FOREIGN:
        return CLOSED
    folder = _folder(entry)
    is_own = folder in (os.sep, os.path.realpath(os.path.expanduser("~")))  # nothing there is a stranger's
    return Permit(may_start=True, closed="" if is_own else folder)


def of_launch(profile: Profile) -> ProfileEntry:
    """A profile that is launched, without a file. A later launch of the same run gives an equal entry."""
    return ProfileEntry(name=profile.name, path=Path(), source="run", profile=profile, error=None)


def trust(entry: ProfileEntry) -> Permit:
    """Remembers a profile as it is now. If that fails, the user is asked again next time."""
    digest, known = _digest(entry), _remembered()
    if digest not in known:
        with contextlib.suppress(OSError, RankdeckError):
            private_folder(state_folder())
            if len(known) >= MOST:
                replace_file(_file(), "".join(f"{one}\n" for one in known[MOST // 2 :]).encode())
            with open(open_regular(_file(), os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb", buffering=0) as file:
                file.write(f"{digest}\n".encode())
    return LAUNCHED


def admit(permit: Permit, plan: LaunchPlan, *, code: bool) -> None:
    """Raises NotTrustedError unless everything may run that a probe or a warm start of a plan runs. `code`: modules are looked up as ranks
    do it, in the folder of the script too."""
    words = [plan.node_python, *_words(plan.launch, plan.layout, plan.env), *plan.preload]
    if code and plan.program.kind != "recipe":
        words += [plan.workdir, *([plan.program.target] if plan.program.kind == "script" else [])]
    permit.admit(*words)


def _words(launch: Launch, layout: Layout, env: Mapping[str, str]) -> list[str]:
    """Everything that decides which programs run before a launch."""
    return [*launch.wrap, launch.python or "", launch.setup, *layout.ssh_options, *env.values()]


def _folder(entry: ProfileEntry | None) -> str:
    """The folder to which paths in a profile are relative."""
    return os.path.realpath((entry and other_project(entry.path)) or os.getcwd())


def _file() -> Path:
    return state_folder() / "trusted"


def _remembered() -> list[str]:
    try:
        return read_file(_file()).decode("ascii", "replace").split()
    except OSError:
        return []


def _digest(entry: ProfileEntry) -> str:
    assert entry.profile is not None
    folder = _folder(entry)
    profile = with_absolute_paths(entry.profile, Path(folder))
    pythons = map(str, pythons_beside(profile, profile.launch.workdir))
    env = {**profile.backend.env, **profile.env}
    words = [*pythons, profile.layout.hostfile or "", *_words(profile.launch, profile.layout, env)]
    path = "" if entry.path == Path() else os.path.realpath(entry.path)
    seen = [path, folder, _owner(path), _owner(folder), profile]
    seen += [(name, os.path.realpath(name), _content(name)) for name in inside(folder, words)]
    whole = msgspec.to_builtins(seen, enc_hook=str)  # not as JSON: names of folders need not be UTF-8
    return hashlib.sha256(repr(whole).encode()).hexdigest()


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid if path else -1
    except OSError:
        return -1


def _content(path: str) -> str:
    """The digest of a file; empty: it is none."""
    try:
        found = os.stat(path)
        return _read(path, found.st_ino, found.st_size, found.st_ctime_ns) if stat.S_ISREG(found.st_mode) else ""
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _read(path: str, inode: int, size: int, changed: int) -> str:
    """The digest of a file's content; the arguments differ once it has changed. A file that is too large is known by its last change."""
    if size > LARGEST:
        return f"{inode} {size} {changed}"
    with open(open_regular(os.path.realpath(path)), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
