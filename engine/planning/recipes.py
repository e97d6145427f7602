"""The built-in training scripts, read from the JSON file beside each of them: adding one needs no change here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from engine.core.catalogue import Argument, RecipeInfo

LIBRARY = Path(__file__).resolve().parents[2] / "rankdeck"
"""The package that ranks import. Never imported here: it is a payload."""


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
