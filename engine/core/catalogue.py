"""Entries of lists in front ends: profiles and backends. Planning makes them, and the client returns them."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.core.plan.profile import Profile


class ImportedCommand(NamedTuple):
    """The profile that a command of another launcher becomes, and a sentence for each reason for which something of it is left out."""

    profile: Profile
    left_out: tuple[str, ...]


class ProfileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A profile file. Exactly one of `profile` and `error` is set. `source`: `here`, `yours`, `shared` or `shipped`, by its
    folder; `file`: in another folder; `run`: no file, but the profile of a run; `command`: no file, but a command that was read. `line`: where
    the error is in the file; None: not known."""

    name: str
    path: Path
    source: str
    profile: Profile | None
    error: str | None
    line: int | None = None


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that a profile may name. `trouble`: why it can't run; `hint`: the next step; both are empty if it can run or was not
    checked. `found`: the libraries that it would use."""

    name: str
    summary: str
    trouble: str = ""
    hint: str = ""
    found: str = ""
