"""The built-in training scripts, described by the JSON file beside each of them."""

from __future__ import annotations

from functools import cache

import msgspec

from engine.core.catalogue import Argument, RecipeInfo
from engine.installed import LIBRARY


class _Declaration(msgspec.Struct, frozen=True):
    title: str
    summary: str
    arguments: tuple[Argument, ...]


@cache
def recipes() -> dict[str, RecipeInfo]:
    """Every recipe by name."""
    found = {}
    for path in sorted((LIBRARY / "recipes").glob("*.json")):
        said = msgspec.json.decode(path.read_bytes(), type=_Declaration)
        found[path.stem] = RecipeInfo(name=path.stem, title=said.title, summary=said.summary, arguments=said.arguments)
    return found
