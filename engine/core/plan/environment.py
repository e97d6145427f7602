"""What is said of a variable that a plan gives its ranks and that will not do what was meant."""

from __future__ import annotations

import msgspec


class EnvWarning(msgspec.Struct, frozen=True, kw_only=True):
    """Something is wrong with a variable. It stops nothing.

    Args:
        place: file and line, or what else it came from; empty where that is not known.
        table: of the profile, `backend.env` or `env`; empty where the user's own environment has it.
        name: of the variable.
        problem: what is wrong, as the end of a sentence that begins with the name.
        hint: the next step.
    """

    place: str
    table: str
    name: str
    problem: str
    hint: str = msgspec.field(name="advice")

    @property
    def key(self) -> str:
        """The variable as a profile's errors name it: `backend.env.NCCL_TIMEOUT`."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def fact(self) -> str:
        """Where, and what is wrong."""
        return f"{self.place}: {self.key} {self.problem}" if self.place else f"{self.key} {self.problem}"

    @property
    def line(self) -> str:
        """All of it."""
        return f"{self.fact}; {self.hint}"
