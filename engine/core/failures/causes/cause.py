"""The fields of a known failure."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["cause", "consequence", "remark", "end", "connection"]
"""`consequence`: blames another process, so it is never the root cause if another failure is known. `remark`: harmless by itself.
`end`: the launcher's report of how a process ended, with groups named `rank`, `signal` and `status`. `connection`: why no agent
could be started; recognised only in the output of a connection that failed."""

Speaker = Literal["", "login", "ssh", "slurm", "pbs", "node"]
"""Who writes the text of a failed connection: PAM or the login shell, ssh, srun and slurmstepd, pbs_tmrsh, or the command on the node."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A known failure. `detail`, `hint` and `fix` may use the named groups of `pattern`."""

    id: str
    pattern: str
    """A regex for text of many lines: `^` and `$` match at each line. Matching takes about linear time."""
    detail: str = ""
    """What it means; empty: show the program's own message."""
    hint: str
    """The next step."""
    fix: str = ""
    """A line to copy: a command, or a setting of a profile."""
    blames: str = ""
    """A headline. Groups of `pattern` whose names begin with `rank` contain the ranks at fault: `{who}`."""
    kind: Kind = "cause"
    waits: bool = False
    """Whether the process only waited for others, so that a rank without an error is the cause."""
    yields_to: str = ""
    """First letters of ids that win over this one in the same process, because they are more specific."""
    speaker: Speaker = ""
    """Of a failed connection: who writes the text."""
    statuses: tuple[int, ...] = ()
    """Of a failed connection: exit statuses for which the pattern counts; empty: all."""
    retry: bool = False
    """Of a failed connection: whether a second try within seconds may succeed."""
    final: bool = False
    """Of a failed connection: whether no other try can ever succeed, because the job is over."""
    gone: bool = False
    """Of a failed connection: whether the node does not belong to the job, which goes on without it."""
    proxied: bool = False
    """Of a failed connection: whether `detail` says that the failure is at a jump host or on the way from it."""
