"""The runs of a sweep as profiles, each checked before the first one starts."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from engine.core.arguments.argument import Argument
from engine.core.arguments.setting import with_argument
from engine.core.errors import UsageError
from engine.core.plan.document.places import Places
from engine.core.plan.document.reading import profile_with_overrides, set_key
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.profile import Profile, to_toml_data
from engine.core.plan.secrets import shown_value
from engine.core.sweeps.grid import Axis, value_text
from engine.core.words import suggestion
from engine.gate import Permit
from engine.planning.make import make_plan
from engine.planning.profile_paths import with_absolute_paths
from engine.planning.programs import arguments_of
from engine.planning.recipes import choices, recipe


class Point(NamedTuple):
    """One run of a sweep. `values`: by argument or key, as text to be shown."""

    profile: Profile
    plan: LaunchPlan
    values: dict[str, str]


def planned(
    profile: Profile, places: Places, axes: Sequence[Axis], chosen: Sequence[tuple[Any, ...]], permit: Permit
) -> list[Point]:
    """Makes the profile and the plan of each point. `axes`: the settings that differ. `chosen`: the values of each point, in the order of
    `axes`. Raises RankdeckError: a point could not be launched."""
    profile = unattended(profile, places)
    found, declared = [], _declared(profile)
    for values in chosen:
        pairs = list(zip(axes, values, strict=True))
        one, its_places = _varied(profile, places, pairs, declared)
        shown = {axis.name: shown_value(axis.name, value_text(value)) for axis, value in pairs}
        found.append(Point(one, make_plan(one, permit, places=its_places), shown))
    return found


def unattended(profile: Profile, places: Places) -> Profile:
    """The profile whose failed runs end, unless it says that they hold: nobody may be there to look after them."""
    key = ("launch", "on_failure")
    if profile.launch.on_failure != "hold" or key in places.lines or key in places.overridden:
        return profile
    return replace(profile, launch=replace(profile.launch, on_failure="stop"))


def _declared(profile: Profile) -> tuple[Argument, ...]:
    """The arguments that the program of a profile declares; empty: they are not known."""
    if profile.recipe.name is not None:
        return recipe(profile.recipe.name).accepted
    script = with_absolute_paths(profile).recipe.script
    return arguments_of(Path(script)) if script is not None else ()


def _varied(
    profile: Profile, places: Places, values: Sequence[tuple[Axis, Any]], declared: Sequence[Argument]
) -> tuple[Profile, Places]:
    """The profile with a value of each axis."""
    data, own = to_toml_data(profile), Places(places.file, places.lines)
    own.overridden = dict(places.overridden)
    for axis, value in values:
        if axis.key:
            set_key(data, axis.key, copy.deepcopy(value), axis.said)
            own.overridden[axis.key] = axis.said
    changed = profile_with_overrides(data, own, (), choices())
    args = list(changed.recipe.args)
    for axis, value in values:
        if not axis.key:
            try:
                _refuse_near(axis, args, declared)
                args = with_argument(args, axis.name, value, declared)
            except UsageError as error:
                raise UsageError(f"{axis.said}: {error.message}", hint=error.hint) from None
            own.overridden["recipe", "args"] = axis.said
    set_key(data, ("recipe", "args"), args, places.file)
    return profile_with_overrides(data, own, (), choices()), own


def _refuse_near(axis: Axis, args: Sequence[str], declared: Sequence[Argument]) -> None:
    """Raises UsageError: neither the program nor the arguments have the name, but one that looks like it."""
    name = axis.name.lstrip("-+")
    known = [one.name for one in declared]
    here = {word.lstrip("-+").partition("=")[0] for word in args}
    if {name, name.replace("-", "_"), name.replace("_", "-")} & {*known, *here}:
        return
    if hint := suggestion(name, known, "", 0.8):
        raise UsageError(f"the program declares no {name}", hint=hint)
