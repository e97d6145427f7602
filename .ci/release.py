"""Builds sdist and wheel and tries them: `python release.py [FOLDER]`, with the packages of the extras dev and release installed.

What is built is the same each time, and from the sdist too; twine and check-wheel-contents find nothing; and the wheel trains beside a
torch with numpy and without, where it also runs each recipe. Under each other Python that is here, the wheel starts ranks of this one's
torch. FOLDER takes the files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_THERE = ("rankdeck", "__editable__", "_rankdeck", "__pycache__")
"""What a bare environment lacks; it has the rest of this one, with or without numpy."""


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Runs a command; its failure ends this program."""
    subprocess.run([*map(str, words)], cwd=cwd, env={**os.environ, **environment}, check=True)


def build(source: Path, folder: Path) -> dict[str, str]:
    """Builds both. Returns their digests by name."""
    when = "1577836800"  # instead of the time of the build
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source, SOURCE_DATE_EPOCH=when)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def bare_environment(folder: Path, wheel: Path, *, has_numpy: bool) -> Path:
    """Makes an environment with the wheel and what this one has. Returns its folder of programs."""
    without = NOT_THERE if has_numpy else (*NOT_THERE, "numpy")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(without):
            (site / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return python.parent


def other_pythons() -> Iterator[Path]:
    """The Pythons of other versions that rankdeck supports, on the PATH or of pyenv."""
    for minor in range(11, 16):
        if minor != sys.version_info.minor:
            of_pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
            found = of_pyenv[-1] if of_pyenv else shutil.which(f"python3.{minor}")
            print(f"Python 3.{minor}: {found or 'not here'}", flush=True)  # noqa: T201
            if found:
                yield Path(found)


def try_aside(python: Path, folder: Path, wheel: Path, training: Path, home: dict[str, str]) -> None:
    """Installs the wheel without torch for another Python, and starts ranks of the training's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [name for name in project["dependencies"] if not name.startswith(("torch", "mpi4py"))]
    run(python, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / "constraints.txt", *needed)
    run(*pip, "--no-deps", "--no-index", wheel)
    rankdeck = folder / "bin" / "rankdeck"
    run(rankdeck, "--version", cwd=folder, **home)
    run(rankdeck, "launch", "--cold", "smoke", "--set", f"launch.python={training}", cwd=folder, **home)


def main() -> int:
    """Does all of it. Returns 1 if a build differs from another."""
    with tempfile.TemporaryDirectory(prefix="release") as name:
        work = Path(name)
        built = Path(sys.argv[1]) if len(sys.argv) > 1 else work / "first"
        shutil.rmtree(built, ignore_errors=True)
        digests = build(ROOT, built)
        (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        others = build(ROOT, work / "second"), build(work / sdist.name.removesuffix(".tar.gz"), work / "third")
        if any(other != digests for other in others):
            print(f"the builds differ: {digests}, {others}", file=sys.stderr)  # noqa: T201
            return 1
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        run(sys.executable, "-m", "check_wheel_contents", wheel)
        programs = bare_environment(work / "bare", wheel, has_numpy=False)
        home = {"RANKDECK_HOME": str(work / "home"), "PYTHONPATH": ""}
        run(
            programs / "python",
            "-c",
            "import rankdeck, torch, importlib.util as u; assert not u.find_spec('numpy')",
            cwd=work,
            **home,
        )
        run(programs / "rankdeck", "--version", cwd=work, **home)
        run(programs / "rankdeck", "launch", "--cold", "smoke", cwd=work, **home)
        with_numpy = bare_environment(work / "numpy", wheel, has_numpy=True)
        run(with_numpy / "python", "-c", "import numpy, torch; torch.zeros(1).numpy()", cwd=work, **home)
        run(with_numpy / "rankdeck", "launch", "--cold", "smoke", cwd=work, **home)
        for python in other_pythons():
            try_aside(python, work / python.parts[-3], wheel, with_numpy / "python", home)
        run(programs / "python", ROOT / ".ci" / "recipes.py", cwd=work, OMP_NUM_THREADS="1", **home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
