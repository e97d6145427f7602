"""Turns a profile into the text in the lines of a form, and that text into a checked `Profile`. Pure. Settings without a line in the form
(stop ladder, metrics, secret variables, …) stay as they are in the edited profile."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

from engine.core.arguments.argument import NO, YES, Argument, RecipeInfo
from engine.core.arguments.words import misplaced, taken_apart, written
from engine.core.errors import ProfileError
from engine.core.plan.document.reading import below, profile_from_data
from engine.core.plan.layout import Place
from engine.core.plan.profile import AUTO_PRELOAD, Layout, Profile, to_toml_data
from engine.core.plan.rank import with_place
from engine.core.plan.secrets import is_secret
from tui.data.form_lines import ARGUMENT, JOB_LINES, OWN_MODULE, OWN_SCRIPT, Values, batch_system, declared_by, fields

FORM = "the form"  # replaces the file's name in errors; the screen shows an error at its line
FIRST_RECIPE = "gpt"  # the recipe of a new profile

ENVIRONMENTS = ("backend.env", "env")  # ids of the lines with environment variables; each is a table of the profile

_FIRST_PLACE = Place(rank=0, node="", local_rank=0, local_world_size=1, group_rank=0)

# --- profile to form -------------------------------------------------------------------------------------------------


def fits_a_form(profile: Profile | None) -> bool:
    """Whether all texts of a profile are printable, so that a form can show them. A terminal would interpret anything else."""
    return profile is None or all(value.isprintable() for value in values_of(profile, ()).values())


def values_of(profile: Profile | None, recipes: Sequence[RecipeInfo], script: str = "") -> dict[str, str]:
    """The values that the form shows. Without a profile, it begins a new one, for a script if one is given."""
    if profile is None:
        names = [recipe.name for recipe in recipes]
        first = OWN_SCRIPT if script else FIRST_RECIPE if FIRST_RECIPE in names else [*names, OWN_SCRIPT][0]
        return {"backend.name": "gloo", "layout.order": "block", "recipe.kind": first, "recipe.script": script, "launch.warm": YES,
                "launch.on_failure": "hold"}  # fmt: skip
    recipe, layout, launch = profile.recipe, profile.layout, profile.launch
    kind = recipe.name or (OWN_SCRIPT if recipe.script is not None else OWN_MODULE)
    arguments, rest = taken_apart(recipe.args, declared_by(kind, recipes))
    return {
        **_job_values(layout),
        "name": profile.name,
        "description": profile.description,
        "backend.name": profile.backend.name,
        "backend.fallback": " ".join(profile.backend.fallback),
        "backend.env": _env_text(profile.backend.env),
        "layout.nodes": _nodes_text(profile),
        "layout.ranks_per_node": "" if layout.ranks_per_node == "auto" else str(layout.ranks_per_node),
        "layout.order": layout.order,
        "recipe.kind": kind,
        "recipe.script": recipe.script or "",
        "recipe.module": recipe.module or "",
        "recipe.args": shlex.join(rest),
        "launch.python": launch.python or "",
        "launch.workdir": "" if launch.workdir == "." else launch.workdir,
        "launch.warm": YES if launch.warm else NO,
        "launch.preload": launch.preload if launch.preload == AUTO_PRELOAD else " ".join(launch.preload),
        "launch.on_failure": launch.on_failure,
        "env": _env_text(profile.env),
        **{f"{ARGUMENT}{name}": value for name, value in arguments.items()},
    }


def _job_values(layout: Layout) -> dict[str, str]:
    if layout.system is None:
        return {}
    values = {line.id: getattr(layout.job, line.key) for line in JOB_LINES[layout.system]}
    return {line: "" if value is None else str(value) for line, value in values.items()}


def _env_text(env: Mapping[str, str]) -> str:
    return shlex.join(f"{name}={value}" for name, value in env.items() if _is_shown(name, value))


def _is_shown(name: str, value: str) -> bool:
    """Whether the form shows a variable: no secrets, and nothing that a terminal would interpret."""
    return value.isprintable() and not is_secret(name, value)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    return next(free for number in count(1) if (free := name if number == 1 else f"{name}-{number}") not in taken)


# --- form to profile -------------------------------------------------------------------------------------------------


def profile_of(
    values: Values, base: Profile | None, recipes: Sequence[RecipeInfo], defaults: Mapping[str, Any] | None = None
) -> Profile:
    """The profile in the form. `base`: the edited profile, for everything that has no line in the form. `defaults`: the site's, for a new profile. Raises ProfileError: `key` is the
    id of the wrong line, or a key that has no line in the form."""
    data: dict[str, Any] = to_toml_data(base) if base is not None else {"schema": 1}
    for key in ("name", "description", "backend.name", "layout.order", "launch.python", "launch.workdir",
                "launch.on_failure"):  # fmt: skip
        _put(data, key, values.get(key, "").strip() or None)
    data.setdefault("name", "")
    _put(data, "backend.fallback", values.get("backend.fallback", "").split() or None)
    preload = values.get("launch.preload", "").split()
    _put(data, "launch.preload", AUTO_PRELOAD if preload == [AUTO_PRELOAD] else preload or None)
    _put(data, "launch.warm", values.get("launch.warm", YES) == YES)
    nodes = values.get("layout.nodes", "").strip()
    if system := batch_system(values):
        _put_job(data.setdefault("layout", {}), system, values)
    elif base is None or nodes != _nodes_text(base):
        _put(data, "layout.nodes", nodes or None)
    ranks = values.get("layout.ranks_per_node", "").strip()
    _put(data, "layout.ranks_per_node", int(ranks) if ranks.isdecimal() else ranks or None)
    data["recipe"] = _recipe(values, base, recipes)
    for key, before in zip(ENVIRONMENTS, (base.backend.env, base.env) if base is not None else ({}, {}), strict=True):
        if (text := values.get(key, "")) != _env_text(before):
            hidden = {name: value for name, value in before.items() if not _is_shown(name, value)}
            _put(data, key, hidden | _env(key, text) or None)
    return profile_from_data(data if base is not None else below(data, defaults or {}), FORM)


def _put_job(layout: dict[str, Any], system: str, values: Values) -> None:
    """Makes a profile submit the job in the form, in place of its nodes."""
    for key in {"nodes", "hostfile", "transport", *JOB_LINES} - {system}:
        layout.pop(key, None)
    if not isinstance(layout.get(system), dict):
        layout[system] = {}
    for line in JOB_LINES[system]:
        text = values.get(line.id, "").strip()
        _put(layout[system], line.key, int(text) if line.is_number and text.isdecimal() else text or None)


def _nodes_text(profile: Profile) -> str:
    nodes = profile.layout.nodes
    return nodes if isinstance(nodes, str) else ", ".join(nodes)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *tables, name = key.split(".")
    for table in tables:
        data = data.setdefault(table, {})
    if value is None:
        data.pop(name, None)
    else:
        data[name] = value


def _recipe(values: Values, base: Profile | None, recipes: Sequence[RecipeInfo]) -> dict[str, Any]:
    kind = values.get("recipe.kind", "")
    if kind == OWN_SCRIPT:
        recipe: dict[str, Any] = {"script": values.get("recipe.script", "").strip()}
    elif kind == OWN_MODULE:
        recipe = {"module": values.get("recipe.module", "").strip()}
    else:
        recipe = {"name": kind}
    declared = declared_by(kind, recipes)
    told = {one.name: values.get(f"{ARGUMENT}{one.name}", "").strip() for one in declared}
    for argument in declared:
        if argument.type != "bool" and told[argument.name]:
            _check(argument, told[argument.name])
    if (missing := misplaced(told, declared)) is not None:
        raise ProfileError(
            FORM, None, f"{ARGUMENT}{missing.name}", "needs a value, because an argument after it has one"
        )
    try:
        more = shlex.split(values.get("recipe.args", ""))
    except ValueError as error:
        raise ProfileError(FORM, None, "recipe.args", f"can't be read as words: {str(error).lower()}") from None
    args = written(told, declared, more)  # may have another order
    if (
        base is not None
        and all(getattr(base.recipe, key) == recipe.get(key) for key in ("name", "script", "module"))
        and taken_apart(base.recipe.args, declared) == ({name: value for name, value in told.items() if value}, more)
    ):
        args = list(base.recipe.args)
    return {**recipe, "args": args} if args else recipe


def _env(key: str, text: str) -> dict[str, str]:
    try:
        pairs = [(word, *word.partition("=")) for word in shlex.split(text)]
    except ValueError as error:
        raise ProfileError(FORM, None, key, f"can't be read as words: {str(error).lower()}") from None
    for word, name, equals, _ in pairs:
        if not name or not equals:
            raise ProfileError(FORM, None, key, f"{word!r} is not NAME=value")
    return {name: value for _, name, _, value in pairs}


def _check(argument: Argument, value: str) -> None:
    if problem := argument.problem(with_place(value, _FIRST_PLACE, 1)):
        raise ProfileError(FORM, None, f"{ARGUMENT}{argument.name}", problem)


STAND_INS: dict[str, str] = {"name": "name", "recipe.script": "script.py", "recipe.module": "module"}
"""Valid values that replace wrong ones while the lines below are checked; other lines are treated as empty."""


def errors_of(values: Values, base: Profile | None, recipes: Sequence[RecipeInfo]) -> list[ProfileError]:
    """All errors, at most one for each line. A check stops at its first error, so it is repeated with a valid value in place of each
    wrong one."""
    lines = [field.id for field in fields(values, recipes, ())]
    values = dict(values)
    errors: dict[str | None, ProfileError] = {}
    while True:
        try:
            profile_of(values, base, recipes)
        except ProfileError as error:
            line = line_of_error(error, lines)
            if line in errors:
                break
            errors[line] = error
            if line is None:
                break
            values[line] = STAND_INS.get(line, "")
        else:
            break
    return list(errors.values())


def line_of_error(error: ProfileError, lines: Sequence[str]) -> str | None:
    """The id of the line with an error; None if the form has no such line."""
    aliases = {"recipe": "recipe.kind", "recipe.name": "recipe.kind", "layout": "layout.nodes"}
    key = aliases.get(error.key, error.key)
    key = next((table for table in ENVIRONMENTS if key.startswith(f"{table}.")), key)
    return key if key in lines else None
