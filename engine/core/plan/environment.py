"""Warnings about environment variables of a plan."""

from __future__ import annotations

import msgspec

INHERITED = "your environment"
"""The place of a variable that the profile does not set."""


class EnvWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A variable without the intended effect. The launch continues.

    Args:
        place: file and line, or another source; empty: unknown.
        table: Table of the profile, `backend.env` or `env`; empty: the user's own environment.
        problem: what is wrong, as the end of a sentence that begins with the name.
        hint: the next step.
    """

    place: str
    table: str
    name: str
    problem: str
    hint: str

    @property
    def key(self) -> str:
        """The variable as errors of profiles name it: `backend.env.NCCL_TIMEOUT`."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def fact(self) -> str:
        return f"{self.place}: {self.key} {self.problem}" if self.place else f"{self.key} {self.problem}"

    @property
    def line(self) -> str:
        return f"{self.fact}; {self.hint}"
