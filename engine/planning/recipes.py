"""The built-in training scripts, as their sources describe them. They are read, not run: they import torch."""

from __future__ import annotations

import ast
import difflib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from engine.core.catalogue import RecipeInfo
from engine.core.errors import UsageError
from engine.core.plan.rank import recipe_file
from engine.installed import LIBRARY

FOLDER = LIBRARY / "recipes"

PARAMETERS = "Parameters"
"""The class in a script that declares its arguments."""

LIMITS = {"REFUSED_BACKENDS": "refused", "RANKS": "ranks"}
"""Variables in a script that say on which backends it can't run, and why, and how many ranks it takes."""

_ORDER = ("default", "help")
"""Positional arguments of `parameter`."""


@cache
def names() -> tuple[str, ...]:
    """The name of every recipe: `linear-hooks` for `linear_hooks.py`. Reads no script."""
    return tuple(sorted(path.stem.replace("_", "-") for path in FOLDER.glob("[!_]*.py")))


def recipes() -> dict[str, RecipeInfo]:
    """Every recipe by name."""
    return {name: recipe(name) for name in names()}


@cache
def recipe(name: str) -> RecipeInfo:
    """A recipe. `name`: one of `names()`."""
    return read_recipe(name, script_of(name).read_text(encoding="utf-8"))


def find_recipe(word: str) -> RecipeInfo:
    """The recipe of a name.

    Raises:
        UsageError: there is none; the hint has the nearest name.
    """
    if word in names():
        return recipe(word)
    near = difflib.get_close_matches(word, names(), 1)
    hint = f"did you mean {near[0]}?" if near else "rankdeck recipes lists them"
    raise UsageError(f"there is no recipe {word!r}", hint=hint)


def script_of(name: str) -> Path:
    """The script of a recipe."""
    return FOLDER / recipe_file(name)


def read_recipe(name: str, source: str) -> RecipeInfo:
    """What a script says about itself.

    Args:
        name: of the recipe.
        source: the script; its `parameter(...)` calls contain literals only.

    Raises:
        ValueError: it declares something in another way.
    """
    tree = ast.parse(source)
    summary, _, lesson = inspect.cleandoc(ast.get_docstring(tree) or "").partition("\n")
    found: dict[str, Any] = {"arguments": []}
    for node in tree.body:
        match node:
            case ast.ClassDef(name=declared) if declared == PARAMETERS:
                found["arguments"] = [_argument(one) for one in node.body if isinstance(one, ast.AnnAssign)]
            case ast.Assign(targets=[ast.Name(id=variable)], value=value) if variable in LIMITS:
                found[LIMITS[variable]] = ast.literal_eval(value)
    return msgspec.convert({"name": name, "summary": summary, "lesson": lesson.strip(), **found}, RecipeInfo)


def _argument(node: ast.AnnAssign) -> dict[str, Any]:
    """One field of `Parameters`."""
    match node:
        case ast.AnnAssign(
            target=ast.Name(id=name),
            annotation=ast.Name(id=kind),
            value=ast.Call(func=ast.Name(id="parameter"), args=args, keywords=keywords),
        ):
            given = dict(zip(_ORDER, args, strict=False)) | {word.arg or "": word.value for word in keywords}
            said = {key: ast.literal_eval(value) for key, value in given.items()}
            return {"name": name.replace("_", "-"), "type": kind, **said}
    raise ValueError(f"line {node.lineno} is not `name: type = parameter(default, help, ...)`")
