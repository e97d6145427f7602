"""From a profile to a plan: asks the nodes what they have, and finds out early what would fail late."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from engine.backends import BACKENDS
from engine.core.errors import CheckError
from engine.core.layout import LOCAL_NAMES, Slots
from engine.core.plan import LaunchPlan, NodeFacts, plan
from engine.core.profile import Choices, Places, Profile, check_choices
from engine.launchers import local
from engine.node_sources import slots_of
from engine.recipes import recipes


def choices() -> Choices:
    """The backends and recipes that a profile may name."""
    return {("backend", "name"): BACKENDS, ("recipe", "name"): recipes()}


def make_plan(profile: Profile, *, checked: bool = True, places: Places | None = None) -> LaunchPlan:
    """What a profile comes to on its nodes, started from the current directory.

    Another node is asked what it has only where the profile leaves its number of ranks to that. What must be there is looked
    for on this machine only, if it takes part: elsewhere paths may mean something else, and `engine.preflight` looks there.

    Args:
        profile: what the user asked for.
        checked: False asks no node and looks for nothing; other nodes that are to count for themselves then have one rank.
        places: where the keys of the profile stand, for warnings; None: nobody knows.

    Raises:
        ProfileError: the profile names a backend or a recipe that does not exist.
        CheckError: a file, an interpreter or a device is missing, or a node can't be asked.
    """
    slots = slots_of(profile.layout)
    check_choices(profile, choices(), "profile")
    backend = BACKENDS[profile.backend.name]
    settings = backend.settings(one_machine=len(slots) == 1)
    profile = _with_absolute_paths(profile)
    workdir = str(Path(profile.launch.workdir).expanduser().absolute())
    unknown = tuple(NodeFacts(name=slot.node, cores=0, gpus=0, python=sys.executable) for slot in slots)
    draft = plan(profile, slots, unknown, settings, workdir=workdir)
    known = {node.name: local.facts(node.name) for node in draft.nodes if node.transport == "local"}
    is_here = bool(known)
    for name in known:
        if name not in LOCAL_NAMES:
            raise CheckError(
                f"{name} is not this machine", hint='leave layout.transport out, or set it to "ssh", to reach it'
            )
    if checked:
        known |= _asked(draft, slots)
    facts = tuple(known.get(fact.name, fact) for fact in unknown)
    decided = plan(profile, slots, facts, settings, workdir=workdir)
    if checked:
        for node in decided.nodes:
            if node.name in known:
                backend.check(len(node.ranks), known[node.name])
        if is_here:
            _check_this_machine(decided)
        backend.check_plan(decided, is_here=is_here)
    from engine.backends.environment import environment_warnings  # hundreds of variables, which --help can do without

    return replace(decided, warnings=environment_warnings(profile, decided, os.environ, places))


def _asked(draft: LaunchPlan, slots: Sequence[Slots]) -> dict[str, NodeFacts]:
    """What the other nodes have that are to count their ranks by it."""
    pairs = zip(draft.nodes, slots, strict=True)
    nodes = [node for node, slot in pairs if node.transport != "local" and slot.ranks is None]
    if not nodes:
        return {}
    from engine.preflight import facts_of

    return {fact.name: fact for fact in facts_of(nodes, draft.reach, draft.python)}


def _check_this_machine(decided: LaunchPlan) -> None:
    """Raises CheckError where something is missing that every rank of this machine needs."""
    if not os.path.isdir(decided.workdir):
        raise CheckError(
            f"the working directory {decided.workdir} does not exist", hint="set launch.workdir to one that does"
        )
    script = Path(decided.program.target)
    if decided.program.kind == "script" and not script.is_file():
        raise CheckError(
            f"the script {script} does not exist", hint="recipe.script counts from where rankdeck is started"
        )
    if decided.program.kind == "script" and not os.access(script, os.R_OK):
        raise CheckError(f"the script {script} can't be read", hint=f"chmod u+r {script.name}")
    if shutil.which(decided.python) is None:
        raise CheckError(f"there is no Python {decided.python!r}", hint="set launch.python to one that has torch")


def _with_absolute_paths(profile: Profile) -> Profile:
    """`script` and `python` count from where rankdeck was started, and ranks start in `workdir`."""
    if profile.recipe.script is not None:
        script = Path(profile.recipe.script).expanduser().absolute()
        profile = replace(profile, recipe=replace(profile.recipe, script=str(script)))
    python = profile.launch.python
    if python and os.sep in python:
        profile = replace(profile, launch=replace(profile.launch, python=str(Path(python).expanduser().absolute())))
    return profile
