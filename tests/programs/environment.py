"""The Python that the programs of this folder run with. As a program it sets one up: `python -m tests.programs.environment`.

It has the libraries of `requirements.txt` in front of the environment that runs the tests, whose torch it uses. The libraries are kept for
the next run, below $XDG_CACHE_HOME/rankdeck-tests, in a folder that is named after what is in it.
"""

import fcntl
import os
import platform
import sys
import sysconfig
import tempfile
import venv
import zlib
from pathlib import Path

from tests.installing import UnavailableError, install

REQUIREMENTS = Path(__file__).with_name("requirements.txt")

SECONDS = 900  # within which the libraries are there, over a slow line too


def libraries() -> Path:
    """Installs the libraries, if that has not been done yet.

    Returns:
        The folder with them.

    Raises:
        UnavailableError: it can't be done here.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    wanted = REQUIREMENTS.read_bytes() + f"{sys.implementation.cache_tag} {platform.machine()}".encode()
    folder = Path(base) / "rankdeck-tests" / f"programs-{zlib.crc32(wanted):08x}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="programs-") as name:
                _install(Path(name, "packages"))
                os.rename(Path(name, "packages"), folder)
    return folder


def _install(folder: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-build-isolation"]
    argv += ["--only-binary", ":all:", "--target", str(folder), "--requirement", str(REQUIREMENTS)]
    install("pip install", argv, seconds=SECONDS, env={"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"})


def make_python(folder: Path) -> Path:
    """Creates an environment with the libraries in front of those that run the tests.

    Args:
        folder: of the environment, which does not exist.

    Returns:
        Its Python.

    Raises:
        UnavailableError: the libraries can't be had here.
    """
    paths = (libraries(), Path(sysconfig.get_path("purelib")))
    venv.create(folder, symlinks=True)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    Path(site, "programs.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin/python"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{libraries()}\n")
    except UnavailableError as error:
        sys.exit(f"there are no libraries for tests/programs: {error}")
