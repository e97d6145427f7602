"""What is written down about a failure."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["cause", "consequence", "remark", "end"]
"""`consequence`: blames another process, so it never wins over one that does not. `remark`: failed nothing by itself. `end`: a
launcher's word on how a process ended, with groups out of `rank`, `signal` and `status`."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that is known.

    `detail`, `advice` and `fix` may use the named groups of `pattern`.
    """

    id: str
    pattern: str
    """A regex for the text of many lines; `^` and `$` match at each. No match takes longer than the text is long, nearly."""
    detail: str = ""
    """What it means; empty: say what the program said."""
    advice: str
    """What helps."""
    fix: str = ""
    """A line to be copied: a command, or a setting of a profile."""
    blames: str = ""
    """A headline. Groups of `pattern` whose names begin with `rank` hold the ranks whose fault it is: `{who}`."""
    kind: Kind = "cause"
    waits: bool = False
    """Whether it waited for others in vain, so that whoever is silent is to blame."""
    general: str = ""
    """First letters of the ids that are preferred to it where the same process shows them: it says little by itself."""
