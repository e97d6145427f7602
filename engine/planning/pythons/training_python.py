"""Finds the Python of ranks where the profile names none: rankdeck may be installed beside the training environment.

A Python is asked whether it has torch: an environment with the system's packages, a `.pth` file, a site's modules or a container's overlay may
bring it. The answer is kept until a folder that the Python imports from changes. The environment of the training's folder, which may be
anybody's, is not asked: its files decide.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.core.errors import NotTrustedError, RankdeckError
from engine.core.plan.profile import Profile
from engine.gate import Permit, which
from engine.linux.files import replace_file
from engine.runs.paths import private_folder, state_folder
from engine.runs.record import find_value

PATIENCE = 10.0  # seconds for a Python to answer
SILENT = 60.0  # seconds in which a silent Python is not asked again: the app plans after each changed line
MOST_KEPT = 64  # Pythons that are remembered: those that were asked last

_QUESTION = """
import json, sys
from importlib.util import find_spec
sys.path = [one for one in sys.path if one]
torch = find_spec("torch")
print("\\n" + json.dumps([torch is not None and torch.origin is not None, sys.executable, sys.path]))
"""
_PYTHON = Path(".venv/bin/python")
_PINS = (".python-version", ".tool-versions", "mise.toml")  # files that tell pyenv, asdf and mise which Python is meant
_silences: dict[str, float] = {}  # when each Python, by its path, was last silent (monotonic clock)


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """A Python's answer: whether it has torch, its own path, and the folders from which it imports."""

    has_torch: bool
    executable: str
    folders: tuple[str, ...]


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An answer, and the facts that it depends on: variables, and modification times by path."""

    answer: _Answer
    variables: dict[str, str]
    changed: dict[str, int]


def training_python(profile: Profile, workdir: str, permit: Permit) -> str:
    """The Python of the first environment that has torch: the active one, `.venv` of the training's folder, the `python` on the PATH,
    rankdeck's own. `profile`: what is launched; its script is an absolute path. `permit`: what may start to find out; an environment that
    may not be asked counts as one without torch."""
    if profile.launch.setup or (profile.launch.python and not profile.launch.wrap):
        return sys.executable  # ranks use another one
    for folder in _active():
        if found := _own(folder) or _with_torch(str(folder / "bin" / "python"), workdir, permit):
            return found
    for python in pythons_beside(profile, workdir):
        folder = python.parent.parent
        has_torch = any(folder.glob("lib/python3*/site-packages/torch/__init__.py")) and os.access(python, os.X_OK)
        if found := _own(folder) or (str(python) if has_torch else ""):
            return found
    on_path = which("python") or which("python3")
    if on_path:
        return _own(Path(on_path).parent.parent) or _with_torch(on_path, workdir, permit) or sys.executable
    return sys.executable


def _active() -> Iterator[Path]:
    """Environments that the user has activated. Conda's `base` is active in every shell of many users: it is the `python` on the PATH."""
    for name in ("VIRTUAL_ENV", *(["CONDA_PREFIX"] if os.environ.get("CONDA_DEFAULT_ENV") != "base" else [])):
        if path := os.environ.get(name):
            yield Path(path)


def pythons_beside(profile: Profile, workdir: str) -> list[Path]:
    """The Pythons of environments that may lie beside the code of ranks. None for recipes: their code is rankdeck's."""
    recipe, work = profile.recipe, Path(workdir)
    if recipe.script is not None:
        folder = Path(recipe.script).parent
        return [folder / _PYTHON, *([work / _PYTHON] if folder.is_relative_to(work) else [])]
    return [work / _PYTHON] if recipe.module is not None else []


def _own(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return sys.executable if folder.samefile(sys.prefix) else ""
    return ""


def _with_torch(python: str, workdir: str, permit: Permit) -> str:
    """The path of a Python, or of the one that it stands for; empty if it has no torch or does not run."""
    answer = _answer(python, workdir, permit)
    if answer is None or not answer.has_torch:
        return ""
    # Those of pyenv, asdf and mise take time at each start, and depend on the folder.
    is_shim = Path(python).parent.name == "shims"
    return answer.executable if is_shim and os.access(answer.executable, os.X_OK) else python


def _answer(python: str, workdir: str, permit: Permit) -> _Answer | None:
    """The answer of a Python, or the kept one if nothing that it depends on has changed."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "PYENV_", "ASDF_", "MISE_"))
    }
    pins = [str(folder / name) for folder in (Path(workdir), *Path(workdir).parents) for name in _PINS]
    pins += [python, os.path.realpath(python), str(Path(python).parent.parent / "version")]
    path = state_folder() / "pythons.json"
    known = find_value(path, dict[str, _Kept]) or {}
    kept = known.get(python)
    if kept is not None and kept.variables == variables and kept.changed == _changed([*pins, *kept.answer.folders]):
        return kept.answer
    answer = _ask(python, workdir, permit)
    if answer is not None:
        known.pop(python, None)
        known[python] = _Kept(answer, variables, _changed([*pins, *answer.folders]))
        with contextlib.suppress(OSError, RankdeckError):
            private_folder(path.parent)
            replace_file(path, msgspec.json.encode(dict(list(known.items())[-MOST_KEPT:])))
    return answer


def _ask(python: str, workdir: str, permit: Permit) -> _Answer | None:
    """Starts a Python in `/`, where no `torch.py` of the current folder is found, and asks it. None: it gave no answer in time, or may not start."""
    environment = {**os.environ, "PYENV_DIR": workdir}
    if time.monotonic() - _silences.get(python, -SILENT) < SILENT:
        return None
    try:
        said = subprocess.run(
            [python, "-c", _QUESTION], executable=permit.program(python), cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=PATIENCE, check=False,
        ).stdout  # fmt: skip
        return msgspec.json.decode(said.rstrip().rpartition(b"\n")[2], type=_Answer)
    except msgspec.MsgspecError:  # too old, or broken
        return _Answer(has_torch=False, executable="", folders=())
    except subprocess.TimeoutExpired:
        _silences[python] = time.monotonic()
    except (OSError, NotTrustedError):
        pass
    return None


def _changed(paths: list[str]) -> dict[str, int]:
    """When files and folders were changed, in ns; missing ones are left out."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found[path] = os.stat(path).st_mtime_ns
    return found
