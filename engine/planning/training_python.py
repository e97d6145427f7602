"""Finds the Python of ranks where the profile names none: rankdeck may be installed beside the training environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.core.plan.profile import Profile


def training_python(profile: Profile, workdir: str) -> str:
    """The Python of the first environment that has torch: the active one, `.venv` of the training's folder, rankdeck's own.

    Args:
        profile: what is launched; its script is an absolute path.
        workdir: where ranks start.
    """
    for folder in (*_active(), *_beside(profile, workdir)):
        if _is_own(folder):
            return sys.executable
        if _has_torch(folder) and os.access(python := folder / "bin" / "python", os.X_OK):
            return str(python)
    return sys.executable


def is_of_folder(profile: Profile, python: str, workdir: str) -> bool:
    """Whether a Python was found in the training's folder, which may be anybody's."""
    return profile.launch.python is None and Path(python).parent.parent in _beside(profile, workdir)


def _active() -> Iterator[Path]:
    """Environments that the user has activated. Conda's `base` is often active in every shell, so it counts only if rankdeck's own environment
    has no torch.
    """
    variables = ["VIRTUAL_ENV"]
    if os.environ.get("CONDA_DEFAULT_ENV") != "base" or importlib.util.find_spec("torch") is None:
        variables.append("CONDA_PREFIX")
    for name in variables:
        if path := os.environ.get(name):
            yield Path(path)


def _beside(profile: Profile, workdir: str) -> list[Path]:
    """Where an environment may lie beside the code of ranks. None for recipes: their code is rankdeck's."""
    recipe, work = profile.recipe, Path(workdir)
    if recipe.script is not None:
        folder = Path(recipe.script).parent
        return [folder / ".venv", *([work / ".venv"] if folder.is_relative_to(work) else [])]
    return [work / ".venv"] if recipe.module is not None else []


def _is_own(folder: Path) -> bool:
    try:
        return folder.samefile(sys.prefix)
    except OSError:
        return False


def _has_torch(folder: Path) -> bool:
    return any(folder.glob("lib/python3*/site-packages/torch/__init__.py"))
