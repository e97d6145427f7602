"""Every error that a user may see, as one tree.

RankdeckError                 exit status 1
├── UsageError                2   a word on the command line is wrong
│   ├── ProfileError          2   a profile is wrong: file, line, key, reason, nearest valid key
│   └── RunNotFoundError      2   no run, or more than one, has that name
├── CheckError                3   something is missing; nothing was started
└── SupervisorError           1   the process that owns a run can't be reached or speaks another protocol
    └── SupervisorLostError   1   it was there and is gone: asking again starts a new one

A message has the fact and the place; `hint` has the next step.
"""

from __future__ import annotations


class RankdeckError(Exception):
    """Base of everything that rankdeck tells a user about.

    Args:
        message: the fact and the place, one line, no final stop.
        hint: the next step, or None where there is none.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(RankdeckError):
    """The command line asks for something that does not exist."""

    exit_status = 2


class ProfileError(UsageError):
    """A profile can't be used.

    Args:
        file: where it was read from, or how it came to be (`--set layout.order`).
        line: counted from 1; None where the file has no such line.
        key: dotted, `layout.ranks_per_node`; empty for the file as a whole.
        reason: what is wrong with it.
        hint: the nearest valid key or value.
    """

    def __init__(self, file: str, line: int | None, key: str, reason: str, *, hint: str | None = None) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {key}: {reason}" if key else f"{place}: {reason}", hint=hint)
        self.file, self.line, self.key, self.reason = file, line, key, reason


class RunNotFoundError(UsageError):
    """No run goes by that name, or several do."""


class CheckError(RankdeckError):
    """A check failed before anything was started."""

    exit_status = 3


class SupervisorError(RankdeckError):
    """The supervisor of a run is not there, is somebody else's, or speaks another protocol."""


class SupervisorLostError(SupervisorError):
    """The supervisor of a run ended while it was listened to. The ranks go on, and asking again starts a new one."""
