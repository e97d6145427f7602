"""Explains why one rank failed, from its exit status and the end of its stderr.

When a rank fails, torch mostly prints errors about other ranks ("connection closed by peer"). So the first step is to find out whether
another rank is to blame; then come the exception, the meaning of the signal, and the next step. Known causes are data in `causes`;
`verdict` compares several ranks.
"""

from __future__ import annotations

import re
import signal
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from engine.core.failures.known import find
from engine.core.failures.tracebacks import (
    EXCEPTION,
    Traceback,
    crash_frames,
    exception_line,
    last_chain,
    shortened,
    without_frames,
)
from engine.core.run.health_events import ON_NAN
from engine.core.run.state import status_words
from engine.core.terminal_text import SEQUENCE
from engine.core.words import limited

TAIL = 65_536
"""Bytes at the end of stderr that are read."""

MAX_DETAIL = 300
"""Longest explanation of a failure, in characters."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank failed."""

    headline: str
    """`rank 2 was killed by SIGKILL`"""
    detail: str
    """One line: the exception, or the meaning of the signal."""
    traceback: str
    """The last traceback that it printed; empty: none."""
    hint: str
    """The next step."""
    fix: str = ""
    """A line to copy, a command or a setting of a profile; empty: none."""
    cause: str = ""
    """The id of the known cause, or one word: `exception`, `exit`, `lost`, `start`, `asked`."""
    line: str = ""
    """The line that shows the known cause."""
    waits: bool = False
    """Whether it timed out waiting for others."""
    ranks: frozenset[int] = frozenset()
    """Ranks that its message names as the cause."""
    blames: str = ""
    """What they did: a headline with `{who}`."""


_LAST_WORDS = 4096
"""Characters at the end of stderr that are searched if there is no traceback."""

_HINT = "read the end of its stderr and stdout"
_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "by the out-of-memory killer, or by somebody with `kill -9`",
        "check `dmesg` for out-of-memory; if so, use a smaller batch or fewer ranks on this node",
    ),
    signal.SIGSEGV: (
        "invalid memory access: a defect in native code, not in Python",
        "set PYTHONFAULTHANDLER=1 in [env] and restart to see the Python line",
    ),
    signal.SIGBUS: (
        "a memory-mapped file could not be accessed, most often because /dev/shm is full",
        "make /dev/shm larger (docker: --shm-size=1g or --ipc=host), or use fewer DataLoader workers",
    ),
    signal.SIGABRT: (
        "native code aborted: an uncaught C++ exception, a failed assertion, or nccl's watchdog",
        "read the end of its stderr, which has the reason",
    ),
    signal.SIGILL: (
        "illegal instruction: a library was built for a different processor",
        "install a build of torch for this processor",
    ),
    signal.SIGFPE: (
        "native code divided by zero",
        "set PYTHONFAULTHANDLER=1 in [env] and restart to see the Python line",
    ),
    signal.SIGTERM: (
        "it was told to end, by `kill`, a scheduler or a time limit",
        "check the job's time limit; restart the run to continue",
    ),
    signal.SIGINT: ("it was interrupted, as by Ctrl-C", "restart the run to continue"),
    signal.SIGHUP: ("its terminal or session was closed", "restart the run to continue"),
    signal.SIGXCPU: ("it reached its CPU time limit", "increase `ulimit -t` on this node"),
}
"""Meaning of a signal and the next step, if stderr has no better explanation."""
_PYTHON_LINE_UNKNOWN = (signal.SIGSEGV, signal.SIGFPE)
"""Signals whose hint asks for the Python line, which faulthandler may have printed."""
_CRASH_HEADER = "Stack of the thread that crashed (most recent call first):"
_HINT_OF_CRASH = "update or rebuild the library that the first of these lines calls, or avoid the call"
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
"""torch's excepthook puts this before every line (torch 2.3 and newer, with a process group)."""
_ABORTED = re.compile(r"^[ \t]*what\(\): +(?P<said>.+)", re.MULTILINE)
_MPI_ERR_UNKNOWN = 14
"""Open MPI's, in its mpi.h."""
_EXIT_OF_SHELL = 128
"""A shell reports a child that a signal has ended as this plus the number of the signal."""


def is_secondary(stderr_tail: bytes | str, mpi_status: int | None = None) -> bool:
    """Whether the end of a rank's stderr blames another rank, so that its failure is a consequence.

    Args:
        stderr_tail: the end of its stderr.
        mpi_status: its exit status if mpirun started it, else None. Without a word, Open MPI 5 ends a rank that has lost a peer on
            another node with MPI_ERR_UNKNOWN.

    Of chained tracebacks the first decides: a rank that fails and then loses its connection during cleanup is still the cause.
    """
    text = plain(stderr_tail)
    if mpi_status == _MPI_ERR_UNKNOWN and not text.strip():
        return True
    chain = last_chain(text, fatal=True)
    words = chain[0].message if chain and chain[0].message else text[-_LAST_WORDS:]
    if find(words, "consequence") is None:
        return False
    return not any(
        find(one.message) for one in chain
    )  # the message has the cause, such as InfiniBand's error in nccl's


@lru_cache(maxsize=64)
def explain(
    rank: int | None, status: int | None, stderr_tail: bytes | str, reason: str = "", by: str = ""
) -> Explanation:
    """Explains why a rank failed. Cached, because the view of a holding run is built ten times a second.

    Args:
        rank: its number; None: unknown.
        status: the exit code, or minus the number of a signal; None: unknown.
        stderr_tail: the end of its stderr.
        reason: from the node's agent: why it could not be started, or how it was lost.
        by: the user who sent the signal that ended it; empty: unknown.
    """
    text, who = plain(stderr_tail), "the process" if rank is None else f"rank {rank}"
    chain = last_chain(text, fatal=True)
    if status == -signal.SIGABRT and not (by or reason) and _aborted_as_it_ended(text, chain):
        status = 1
    raised = _to_blame(chain) if status is not None and status > 0 else None
    end = _about_end(who, status, reason, raised)
    if by and status is not None and status < 0:
        return _about_request(who, end.headline, by)
    traceback = shortened(last_chain(text, fatal=False))
    if status is not None and status < 0 and (frames := crash_frames(text)):
        traceback = shortened([Traceback(lines=(_CRASH_HEADER, *frames), message="")])
        if -status in _PYTHON_LINE_UNKNOWN:
            end = replace(end, hint=_HINT_OF_CRASH, fix="")
    end = replace(end, traceback=traceback, detail=_one_line(end.detail))
    said = reason or (raised.message if raised else without_frames(text)[-_LAST_WORDS:])
    return end if status is None else _about_known(end, text, said, status, is_start=bool(reason))


def _about_request(who: str, headline: str, by: str) -> Explanation:
    """The explanation of a signal that rankdeck has sent: for a user, or because of `launch.on_nan`."""
    if by == ON_NAN:
        return Explanation(
            headline=f"{who} was ended because its loss was not finite",
            detail="launch.on_nan says so; the step is in the events",
            traceback="",
            hint="restart from a checkpoint before that step, for example with a lower learning rate or clipped gradients",
            cause="nan",
        )
    return Explanation(
        headline=headline,
        detail=f"{by} sent it with rankdeck kill, or in the app",
        traceback="",
        hint="",  # what a restart does is said beside it
        cause="asked",
    )


def _about_known(end: Explanation, text: str, said: str, status: int, *, is_start: bool) -> Explanation:
    """The explanation with what the output shows: a known cause, a consequence of another failure, or the last line.

    Args:
        end: the explanation by status and exception.
        text: the end of the output.
        said: the part of it that may show the cause, or the agent's reason.
        status: the exit code, or minus the number of a signal.
        is_start: `said` is why the rank could not be started.
    """
    detail = end.detail
    if not detail and status > 0:
        detail = next((line for line in reversed(text.split("\n")) if line.strip()), "")
    if status == -signal.SIGABRT and (aborted := _ABORTED.search(said)):
        detail = aborted["said"]
    if known := find(said):
        if known.cause.yields_to:
            known = find(text, letters=known.cause.yields_to) or known
        return replace(
            end,
            detail=_one_line(known.detail or (known.line if status < 0 else detail)),
            hint=known.hint,
            fix=known.fix,
            cause=known.cause.id,
            line=_one_line(known.line),
            waits=known.cause.waits,
            ranks=known.ranks if known.cause.blames else frozenset(),
            blames=known.cause.blames,
        )
    if not is_start and (known := find(said, "consequence")):
        hint = "another rank ended first: look for one that was killed, was lost, or raised another exception"
        return replace(end, detail=_one_line(detail), hint=hint, fix="", cause=known.cause.id)
    return replace(end, detail=_one_line(detail))


def _aborted_as_it_ended(text: str, chain: list[Traceback]) -> bool:
    """Whether an exception ended a process that aborted during its exit, as with torch if a thread of a process group still runs. A
    process that aborts for another reason prints it after the exception."""
    last = chain[-1].message.strip().rpartition("\n")[2] if chain else ""
    if not last:
        return False
    after = text.rpartition(last)[2]
    return _ABORTED.search(after) is None and find(after) is None


def _about_end(who: str, status: int | None, reason: str, raised: Traceback | None) -> Explanation:
    """The explanation by status and exception alone."""
    if status is None:
        headline, detail, hint, cause = (
            f"{who} was lost", reason, "check its node, then restart the run", "lost",
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
            detail = (
                f"a shell reports {status} for a program that was killed by {status_words(_EXIT_OF_SHELL - status)}"
            )
    fix = _FIXES.get(-status, "") if status is not None and not reason else ""
    return Explanation(headline=headline, detail=detail, traceback="", hint=hint, fix=fix, cause=cause)


def _to_blame(chain: list[Traceback]) -> Traceback | None:
    """The exception to explain: the last of a chain, unless it is only a consequence of other ranks' ends."""
    if not chain or not chain[-1].message:
        return None
    first, last = chain[0], chain[-1]
    return first if first.message and find(last.message, "consequence") else last


def _one_line(text: str) -> str:
    return limited(" ".join(text.split()), MAX_DETAIL)


def plain(said: bytes | str) -> str:
    """The end of a process's output without colours and torch's prefixes, with `\\n` as the only line end."""
    if isinstance(said, str):
        return said[-TAIL:]
    text = said[-TAIL:].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _RANK_PREFIX.sub("", SEQUENCE.sub("", text))
