"""The built-in training scripts, described by the JSON file beside each of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from engine.core.catalogue import Argument, RecipeInfo

LIBRARY = Path(__file__).resolve().parents[2] / "rankdeck"
"""The package that ranks import. The engine sends it to nodes and never imports it."""


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
