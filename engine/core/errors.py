"""Every error that a user may see, as one tree.

RankdeckError                 exit status 1
├── UsageError                2   the command line is wrong
│   ├── ProfileError          2   a profile or config.toml is wrong: file, line, key, reason, nearest valid key
│   └── RunNotFoundError      2   no run, or more than one, has that name
├── CheckError                3   something is missing; nothing was started
│   └── NoAnswerError         3   a program has not answered in time
├── NotTrustedError           3   something would run for a profile, or in a folder, that the user has not trusted
└── SupervisorError           1   the process that owns a run can't be reached or uses another protocol
    ├── SupervisorElsewhereError  1   it is on another host that shares the home
    ├── OtherVersionError     1   it is of another version of rankdeck
    ├── QueuedRunError        1   the run waits for its job, and has no supervisor
    ├── EndingJobError        1   its job ends soon, and it has ended already
    ├── SuspendedJobError     1   it is in a job that is suspended, so that it can't answer
    ├── SilentSlurmError      1   it is in a job, and no controller of Slurm answers
    └── SupervisorLostError   1   it ended during a request; the next request starts a new one

A message has the fact and the place; `hint` has the next step.
"""


class RankdeckError(Exception):
    """Base of all errors that a user may see. `message`: the fact and the place, one line, without a full stop. `hint`: the next step;
    None: none."""

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
    """A profile, or the user's config.toml, is invalid. `file`: may also be the option that has set the key (`--set layout.order`). `line`:
    counted from 1; None: unknown. `key`: dotted, `layout.ranks_per_node`; empty: the whole file. `hint`: the nearest valid key or value."""

    def __init__(self, file: str, line: int | None, key: str, reason: str, *, hint: str | None = None) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {key}: {reason}" if key else f"{place}: {reason}", hint=hint)
        self.file, self.line, self.key, self.reason = file, line, key, reason


class RunNotFoundError(UsageError):
    """No run has that name, or several do."""


class CheckError(RankdeckError):
    """A check failed before anything was started."""

    exit_status = 3


class NoAnswerError(CheckError):
    """A program has not answered in time, and was killed. Its request may have been served."""


class NotTrustedError(RankdeckError):
    """Something would run for a profile, or in a folder, that the user has neither launched nor trusted."""

    exit_status = 3


class SupervisorError(RankdeckError):
    """The supervisor of a run can't be reached, belongs to another user, or uses another protocol."""


class SupervisorElsewhereError(SupervisorError):
    """The supervisor of a run is on another host that shares the home, and only there it can be asked for something."""


class OtherVersionError(SupervisorError):
    """The run was launched by another version of rankdeck, whose supervisor speaks another protocol."""


class SupervisorDefectError(SupervisorError):
    """The supervisor of a run can't do what it is asked for, because of an error of its own."""


class QueuedRunError(SupervisorError):
    """The run waits for its job. The supervisor starts with that."""


class EndingJobError(SupervisorError):
    """The batch system ends the job of the run. The supervisor has ended already, and whether the job begins again is not known yet."""


class SuspendedJobError(SupervisorError):
    """The supervisor is in a job that the batch system has suspended. It answers when the job is resumed."""


class SilentSlurmError(SupervisorError):
    """The supervisor is in a job, and can't be reached because no controller of Slurm answers."""


class SupervisorLostError(SupervisorError):
    """The supervisor of a run ended during a request. The ranks keep running, and the next request starts a new one."""
