"""What a front end lists: profiles, recipes and backends, as plain values that planning makes and the client hands on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from engine.core.plan.profile import Profile


class ProfileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A profile file that was found. Exactly one of `profile` and `error` is set."""

    name: str
    path: Path
    source: str
    """here | yours | shipped"""
    profile: Profile | None
    error: str | None


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One command line argument of a recipe, as its JSON file declares it: `--name value`."""

    name: str
    type: Literal["int", "float", "str"]
    default: int | float | str
    help: str
    pattern: str = ""
    """Regular expression that the whole of a value matches; empty: any does."""


class RecipeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in training script."""

    name: str
    title: str
    summary: str
    arguments: tuple[Argument, ...]


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that a profile may name. `trouble`: why it can't run, and `hint`, what helps; empty where it can, or nobody asked.
    `found`: what it would run with, in words."""

    name: str
    summary: str
    trouble: str = ""
    hint: str = ""
    found: str = ""
