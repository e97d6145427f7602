"""Environments with another torch and another Python than rankdeck's, as users have them. Made on demand, kept below `~/.cache`."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.installing import UnavailableError, install

SECONDS = 1800  # to install an environment: an older torch has 5 GB, because it is built for CUDA


class Versions(NamedTuple):
    """A torch, and a Python that has it."""

    torch: str
    python: str

    def __str__(self) -> str:
        return f"torch-{self.torch}-python-{self.python}"


MATRIX = (
    Versions("2.1.2", "3.10"),
    Versions("2.2.2", "3.9"),
    Versions("2.4.1", "3.10"),
    Versions("2.5.1", "3.12"),
    Versions("2.6.0", "3.9"),
    Versions("2.7.1", "3.13"),
    Versions("2.8.0", "3.12"),
    Versions("2.10.0", "3.12"),
    Versions("2.15.0", "3.13"),
)
"""What `make versions` tries. All other tests have the torch of `constraints.txt`."""

IN_CI = MATRIX[1]
"""The only one of them in `.ci/run`: an old torch, with the oldest Python that ranks may have. It takes 5 GB."""


def find_python(version: str) -> str:
    """Returns a Python of a version such as `3.10`, from PATH or pyenv. Raises UnavailableError: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    own = [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"))]
    for program in [*own, shutil.which(f"python{version}")]:
        if program and subprocess.run([program, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return program
    raise UnavailableError(f"there is no Python {version}")


@contextlib.contextmanager
def environment(versions: Versions) -> Iterator[Path]:
    """Makes an environment, unless it is there, and removes it where `RANKDECK_TESTS_DROP` is set, since all of them take 50 GB.

    Yields:
        Its Python.

    Raises:
        UnavailableError: it can't be had here.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "rankdeck-tests" / "versions" / str(versions)
    if not (folder / "ready").exists():
        _make(folder, versions)
    yield folder / "bin" / "python"
    if "RANKDECK_TESTS_DROP" in os.environ:
        shutil.rmtree(folder.resolve())


def _make(folder: Path, versions: Versions) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    minor = int(re.split(r"\.", versions.torch)[1])
    numpy = "numpy<2" if minor < 3 else "numpy"  # torch up to 2.2 was built with numpy 1
    install("venv", [find_python(versions.python), "-m", "venv", str(folder)], seconds=SECONDS)
    argv = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        f"torch=={versions.torch}",
        numpy,
        "mpi4py",
    ]
    install(f"pip install torch {versions.torch} for Python {versions.python}", argv, seconds=SECONDS)
    (folder / "ready").touch()


def main() -> None:
    """Makes the environment for CI. Exits with the reason if there is none."""
    try:
        with environment(IN_CI):
            pass
    except UnavailableError as error:
        sys.exit(f"no ranks with {IN_CI} are tried: {error}")


if __name__ == "__main__":
    main()
