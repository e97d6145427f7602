"""What one entry of the known failures holds."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["cause", "consequence", "remark", "end", "connection"]
"""`consequence`: blames another process, so it never wins over one that does not. `remark`: did no harm by itself. `end`: how a
process ended according to its launcher, with groups out of `rank`, `signal` and `status`. `connection`: why no agent could be
started; recognised only in the output of a connection that failed."""

Speaker = Literal["", "login", "ssh", "node"]
"""Who writes the text, for causes of failed connections: PAM or the login shell, ssh, or what runs on the node."""


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
    """A headline. Groups of `pattern` whose names begin with `rank` hold the ranks whose fault it is: `{who}`."""
    kind: Kind = "cause"
    waits: bool = False
    """Whether the process only waited for others, so that a rank that is silent is the cause."""
    yields_to: str = ""
    """First letters of ids that win over this one if the same process shows them: this cause says little by itself."""
    speaker: Speaker = ""
    """Of a failed connection: who writes it."""
    statuses: tuple[int, ...] = ()
    """Of a failed connection: exit statuses with which the pattern counts; empty: all."""
    retry: bool = False
    """Of a failed connection: whether a second try within seconds may succeed."""
