"""A Python that can load UCC, wherever the tests run. As a program it sets one up: `python -m tests.ucc.system`.

Where the system has UCC, that is the Python that runs the tests. Elsewhere Debian's packages of unstable, which want a newer libc than stable
has, are unpacked into a folder of their own with that libc and its loader; nothing of the system is changed. The folder is kept for the next
run, below $XDG_CACHE_HOME/rankdeck-tests.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pytest

from tests.installing import UnavailableError, install
from tests.support import NEEDS_UCC, ROOT, entries

PACKAGES = (
    "libc6", "libibverbs1", "libnl-3-200", "libnl-route-3-200", "libnuma1", "librdmacm1t64", "libucx0", "libucc1", "libucc-dev",
)  # fmt: skip
"""UCC, and what it needs besides what every system has."""

SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} sid main\n"
MIRROR = "http://deb.debian.org/debian"  # where a system with sources of its own names no mirror of Debian
CONFIGURATION = entries("ucc/system", "configuration")  # of an apt that knows unstable only and keeps its lists apart
SECONDS = 120  # within which a step of the set-up has ended
PROBE = ROOT / "rankdeck/c10d/_ucc/library.py"


def cache() -> Path:
    """Where the packages are."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "rankdeck-tests" / "ucc-sid"


def libraries(folder: Path) -> Path:
    """The folder of the unpacked libraries."""
    return folder / "root/usr/lib" / f"{platform.machine()}-linux-gnu"


def has_ucc(python: str | Path) -> str:
    """What is wrong with this Python; empty: nothing."""
    done = subprocess.run(
        [str(python), str(PROBE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def set_up() -> Path:
    """Unpacks the packages, if that has not been done yet.

    Returns:
        The folder with them.

    Raises:
        UnavailableError: it can't be done here.
    """
    folder = cache()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        if platform.machine() != "x86_64":
            raise UnavailableError("the tests of UCC know x86_64 only")
        if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
            raise UnavailableError(f"UCC is set up from Debian's packages, and there is no {' and no '.join(missing)}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="ucc-") as name:
            _download(Path(name))
            os.rename(Path(name, "packages"), folder)
    return folder


def mirror() -> str:
    """The mirror of Debian that the system's own apt uses."""
    words = ("--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages")
    done = subprocess.run(
        ["apt-get", "indextargets", *words], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    targets = (line.split() for line in done.stdout.splitlines())
    found = (uri for uri, component in targets if component == "main" and uri.rstrip("/").endswith("/debian"))
    return next(found, MIRROR)


def _download(folder: Path) -> None:
    packages = folder / "packages"
    for part in ("state/lists/partial", "cache/archives/partial", "packages/root"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(SOURCE.format(mirror=mirror()))
    (folder / "apt.conf").write_text(CONFIGURATION.format(folder=folder))
    _run(folder, "apt-get", "update", "-qq")
    _run(folder, "apt-get", "download", "-qq", *PACKAGES)
    for package in sorted(folder.glob("*.deb")):
        _run(folder, "dpkg-deb", "-x", str(package), str(packages / "root"))


def _run(folder: Path, *argv: str) -> None:
    env = {"APT_CONFIG": str(folder / "apt.conf")}
    install(f"{argv[0]} {argv[1]}", argv, seconds=SECONDS, folder=folder, env=env)


def python() -> Path:
    """The Python of these tests, with UCC within its reach. Raises UnavailableError: it can't be had here."""
    if not has_ucc(sys.executable):
        return Path(sys.executable)
    folder = libraries(set_up())
    words = [folder / "ld-linux-x86-64.so.2", "--library-path", folder, "--argv0", sys.executable]
    real = os.path.realpath(sys.executable)
    text = f'#!/bin/sh\nexec {shlex.join(map(str, [*words, real]))} "$@"\n'
    wrapper = cache() / f"python-{zlib.crc32(text.encode()):08x}"
    if not wrapper.exists():
        draft = wrapper.with_name(f"{wrapper.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.rename(wrapper)
    if trouble := has_ucc(wrapper):
        raise UnavailableError(trouble)
    return wrapper


@functools.cache
def _python_or_why_not() -> Path | UnavailableError:
    """Asked once: what failed would fail again."""
    try:
        return python()
    except UnavailableError as error:
        return error


def need_ucc() -> Path:
    """Skips the test where there is no such Python."""
    found = _python_or_why_not()
    if isinstance(found, UnavailableError):
        pytest.skip(f"{NEEDS_UCC}: {found}")
    return found


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{python()}\n")
    except UnavailableError as error:
        sys.exit(f"there is no UCC for the tests: {error}")
