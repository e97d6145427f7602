"""Explains a failed rank from what is known of it: its exit status, and the last that it wrote to stderr.

What torch prints when a rank fails is mostly about another rank ("connection closed by peer"), so the first question is
whose fault it was. Only then come the exception, the signal in words, and the next step. Known causes are data, in `causes`;
several ranks together are looked at in `verdict`.
"""

from __future__ import annotations

import re
import signal
from functools import lru_cache

import msgspec

from engine.core.failures.known import find
from engine.core.failures.tracebacks import EXCEPTION, Traceback, exception_line, last_chain, shortened, without_frames
from engine.core.run.state import status_words
from engine.core.terminal_text import SEQUENCE

TAIL = 65_536
"""Newest bytes of stderr that are looked at."""

MAX_DETAIL = 300
"""Characters of one line that explains a failure."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank failed, in words."""

    headline: str
    """`rank 2 was killed by SIGKILL`"""
    detail: str
    """One line: the exception, or what is known about a signal."""
    traceback: str
    """The last traceback that it printed, or empty."""
    hint: str
    """The next step."""
    fix: str = ""
    """A line to be copied: a command, or a setting of a profile; empty where there is none."""
    cause: str = ""
    """The id of the known cause, or one word: `exception`, `exit`, `lost`, `start`, `asked`."""
    line: str = ""
    """The line that shows the known cause."""
    waits: bool = False
    """Whether it waited for others in vain."""
    ranks: frozenset[int] = frozenset()
    """Ranks that it says are to blame."""
    blames: str = ""
    """What they are to blame for: a headline with `{who}`."""


_LAST_WORDS = 4096
"""Characters that count as the last words of a rank that left no traceback."""

_HINT = "read the end of its stderr and stdout"
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "by the out-of-memory killer, or by somebody with `kill -9`",
        "look into `dmesg` for out-of-memory; if so, use a smaller batch or fewer ranks on this node",
    ),
    signal.SIGSEGV: (
        "it touched memory that it does not own: a fault in native code, not in Python",
        "set PYTHONFAULTHANDLER=1 in [env] and restart to see the Python line",
    ),
    signal.SIGBUS: (
        "memory behind a mapped file was gone, most often because /dev/shm is full",
        "make /dev/shm larger (docker: --shm-size=1g or --ipc=host), or use fewer DataLoader workers",
    ),
    signal.SIGABRT: (
        "native code gave up: an uncaught C++ exception, a failed assertion, or nccl's watchdog",
        "read the end of its stderr, which says what was checked",
    ),
    signal.SIGILL: (
        "an instruction that this processor does not have: a library was built for another one",
        "install a build of torch for this processor",
    ),
    signal.SIGFPE: (
        "native code divided by zero",
        "set PYTHONFAULTHANDLER=1 in [env] and restart to see the Python line",
    ),
    signal.SIGTERM: (
        "somebody or something asked it to end: `kill`, a scheduler, a time limit",
        "look for a time limit of the job; restart the run to go on",
    ),
    signal.SIGINT: ("somebody interrupted it, as Ctrl-C does", "restart the run to go on"),
    signal.SIGHUP: ("what it was started from hung up", "restart the run to go on"),
    signal.SIGXCPU: ("it used up its CPU time limit", "raise `ulimit -t` on this node"),
}
"""What a signal means, and the next step, where stderr says nothing more."""
_DMESG = "dmesg -T | grep -i 'killed process'"
_FIXES: dict[int, str] = {
    signal.SIGKILL: _DMESG,
    signal.SIGSEGV: 'env.PYTHONFAULTHANDLER = "1"',
    signal.SIGFPE: 'env.PYTHONFAULTHANDLER = "1"',
    signal.SIGBUS: "df -h /dev/shm",
    signal.SIGXCPU: 'launch.setup = "ulimit -t unlimited"',
}
"""Lines to be copied."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""torch's excepthook puts this before every line (torch 2.3 and newer, once a process group exists)."""
_ABORTED = re.compile(r"^[ \t]*what\(\): +(?P<said>.+)", re.MULTILINE)
_EXIT_OF_SHELL = 128
"""A shell that runs the rank adds the number of the signal that ended it to this."""


# --- the questions ---------------------------------------------------------------------------------------------------


def is_secondary(stderr_tail: bytes | str) -> bool:
    """Whether a rank's last words blame another rank, so that its failure is a consequence.

    Where tracebacks are chained the first one decides: a rank that fails by itself and then loses its connection while
    it cleans up is still the cause.

    Args:
        stderr_tail: the newest bytes that it wrote.
    """
    text = plain(stderr_tail)
    chain = last_chain(text, fatal=True)
    words = chain[0].message if chain and chain[0].message else text[-_LAST_WORDS:]
    if find(words, "consequence") is None:
        return False
    return not any(find(one.message) for one in chain)  # it knows why, as nccl does that quotes InfiniBand's error


def last_traceback(stderr_tail: bytes) -> str:
    """The last Python traceback with those that it is chained to, or an empty string.

    Args:
        stderr_tail: the newest bytes that a rank wrote.

    Returns:
        At most `MAX_LINES` lines and `MAX_BYTES` bytes of text, without colours, torch's `[rank0]:` and native frames.
    """
    return shortened(last_chain(plain(stderr_tail), fatal=False))


@lru_cache(maxsize=64)
def explain(
    rank: int | None, status: int | None, stderr_tail: bytes | str, reason: str = "", by: str = ""
) -> Explanation:
    """Says why a rank failed. Remembered, since a run that holds is looked at ten times a second.

    Args:
        rank: its number; None: nobody knows.
        status: the exit code, or minus the number of a signal; None: nobody knows how it ended.
        stderr_tail: the newest bytes that it wrote.
        reason: what the node's agent says besides the status: that it could not be started, or how it was lost.
        by: the user who sent the signal that ended it, where that is known.
    """
    text = plain(stderr_tail)
    chain = last_chain(text, fatal=True)
    if status == -signal.SIGABRT and not (by or reason) and _aborted_as_it_ended(text, chain):
        status = 1
    raised = _to_blame(chain) if status is not None and status > 0 else None
    end = _about_end("the process" if rank is None else f"rank {rank}", status, reason, raised)
    if by and status is not None and status < 0:
        return Explanation(
            headline=end.headline,
            detail=f"{by} sent it with rankdeck kill, or with x in the app",
            traceback="",
            hint="restart the run when it should go on",
            cause="asked",
        )
    said = reason or (raised.message if raised else without_frames(text)[-_LAST_WORDS:])
    detail = end.detail
    traceback = shortened(last_chain(text, fatal=False))
    if status is not None:
        if not detail and status > 0:
            detail = next((line for line in reversed(text.split("\n")) if line.strip()), "")
        if status == -signal.SIGABRT and (aborted := _ABORTED.search(said)):
            detail = aborted["said"]
        if known := find(said):
            if known.cause.yields_to:
                known = find(text, letters=known.cause.yields_to) or known
            return Explanation(
                headline=end.headline,
                detail=_one_line(known.detail or (known.line if status < 0 else detail)),
                traceback=traceback,
                hint=known.hint,
                fix=known.fix,
                cause=known.cause.id,
                line=_one_line(known.line),
                waits=known.cause.waits,
                ranks=known.ranks if known.cause.blames else frozenset(),
                blames=known.cause.blames,
            )
        if not reason and (known := find(said, "consequence")):
            hint = "another rank ended first: look at the one that was killed, lost, or raised an exception of its own"
            return Explanation(
                headline=end.headline, detail=_one_line(detail), traceback=traceback, hint=hint, cause=known.cause.id
            )
    return Explanation(
        headline=end.headline,
        detail=_one_line(detail),
        traceback=traceback,
        hint=end.hint,
        fix=end.fix,
        cause=end.cause,
    )


def _aborted_as_it_ended(text: str, chain: list[Traceback]) -> bool:
    """Whether an exception ended a process that was then aborted on its way out, as torch does where a thread of a process group still
    runs. What was aborted for a reason of its own says it after that."""
    last = chain[-1].message.strip().rpartition("\n")[2] if chain else ""
    if not last:
        return False
    after = text.rpartition(last)[2]
    return _ABORTED.search(after) is None and find(after) is None


# --- one end, in words -----------------------------------------------------------------------------------------------


def _about_end(who: str, status: int | None, reason: str, raised: Traceback | None) -> Explanation:
    """What the status and the exception tell."""
    if status is None:
        headline, detail, hint, cause = (
            f"{who} was lost", reason, "see whether its node is well, then restart the run", "lost",
        )  # fmt: skip
    elif reason:
        headline, detail = f"{who} could not be started", reason
        hint, cause = "correct what the reason names, then restart the run", "start"
    elif status < 0:
        headline = f"{who} was killed by {status_words(status)}"
        detail, hint = _SIGNALS.get(-status, ("", _HINT))
        cause = "E1" if status == -signal.SIGKILL else "E2"
    else:
        headline, detail, hint, cause = f"{who} exited with {status}", "", _HINT, "exit"
        detail = exception_line(raised) if raised else ""
        if status == 1 and (name := EXCEPTION.match(detail)):
            headline = f"{who} raised {name['name'].rpartition('.')[2]}"
            hint, cause = "correct it where the traceback ends, then restart the run", "exception"
        elif not detail and status - _EXIT_OF_SHELL in _SIGNALS:
            detail = f"a shell says {status} of a program that was killed by {status_words(_EXIT_OF_SHELL - status)}"
    fix = _FIXES.get(-status, "") if status is not None and not reason else ""
    return Explanation(headline=headline, detail=detail, traceback="", hint=hint, fix=fix, cause=cause)


def _to_blame(chain: list[Traceback]) -> Traceback | None:
    """The exception that a chain is about: the last, unless that one only says that others are gone by now."""
    if not chain or not chain[-1].message:
        return None
    first, last = chain[0], chain[-1]
    return first if first.message and find(last.message, "consequence") else last


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


def plain(said: bytes | str) -> str:
    """The newest part of what a process wrote: no colours, none of torch's prefixes, `\\n` as the only line end."""
    if isinstance(said, str):
        return said[-TAIL:]
    text = said[-TAIL:].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _RANK_PREFIX.sub("", SEQUENCE.sub("", text))
