"""Entries of lists in front ends: profiles, recipes and backends. Planning makes them, and the client returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from engine.core.plan.profile import Profile


class ProfileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A profile file. Exactly one of `profile` and `error` is set. `source`: here, yours or shipped."""

    name: str
    path: Path
    source: str
    profile: Profile | None
    error: str | None


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One command line argument of a recipe, as its JSON file declares it: `--name value`."""

    name: str
    type: Literal["int", "float", "str"]
    default: int | float | str
    help: str
    pattern: str = ""
    """Regular expression for the whole value; empty: any value is valid."""


class RecipeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in training script."""

    name: str
    title: str
    summary: str
    arguments: tuple[Argument, ...]


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that a profile may name. `trouble`: why it can't run; `hint`: the next step; both are empty if it can run or was not
    checked. `found`: the libraries that it would use."""

    name: str
    summary: str
    trouble: str = ""
    hint: str = ""
    found: str = ""
