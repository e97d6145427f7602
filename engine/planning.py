"""From a profile to a plan: asks the nodes what they have, and finds out early what would fail late."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from msgspec.structs import replace

from engine.backends import BACKENDS
from engine.core.errors import CheckError
from engine.core.layout import parse_nodes
from engine.core.plan import LaunchPlan, plan
from engine.core.profile import Choices, Profile, check_choices
from engine.launchers import LAUNCHERS
from engine.recipes import recipes


def choices() -> Choices:
    """The backends and recipes that a profile may name."""
    return {("backend", "name"): BACKENDS, ("recipe", "name"): recipes()}


def make_plan(profile: Profile) -> LaunchPlan:
    """What a profile comes to on this machine, started from the current directory.

    Raises:
        ProfileError: the profile names a backend or a recipe that does not exist.
        CheckError: a file, an interpreter or a device is missing.
    """
    slots = parse_nodes(profile.layout.nodes, profile.layout.ranks_per_node)
    check_choices(profile, choices(), "profile")
    backend = BACKENDS[profile.backend.name]
    facts = tuple(LAUNCHERS["local"].facts(slot.node) for slot in slots)
    workdir = _existing_workdir(profile.launch.workdir)
    decided = plan(_with_absolute_paths(profile), slots, facts, backend.settings(one_machine=True), workdir=workdir)
    for node, fact in zip(decided.nodes, facts, strict=True):
        backend.check(len(node.ranks), fact)
    if shutil.which(decided.python) is None:
        raise CheckError(f"there is no Python {decided.python!r}", hint="set launch.python to one that has torch")
    return decided


def _existing_workdir(workdir: str) -> str:
    path = Path(workdir).expanduser().absolute()
    if not path.is_dir():
        raise CheckError(f"the working directory {path} does not exist", hint="set launch.workdir to one that does")
    return str(path)


def _with_absolute_paths(profile: Profile) -> Profile:
    """`script` and `python` count from where rankdeck was started, and ranks start in `workdir`."""
    if profile.recipe.script is not None:
        script = Path(profile.recipe.script).expanduser().absolute()
        if not script.is_file():
            raise CheckError(
                f"the script {script} does not exist", hint="recipe.script counts from where rankdeck is started"
            )
        if not os.access(script, os.R_OK):
            raise CheckError(f"the script {script} can't be read", hint=f"chmod u+r {script.name}")
        profile = replace(profile, recipe=replace(profile.recipe, script=str(script)))
    python = profile.launch.python
    if python and os.sep in python:
        profile = replace(profile, launch=replace(profile.launch, python=str(Path(python).expanduser().absolute())))
    return profile
