"""Explains why one rank failed, from its exit status and the end of its output. The exit status comes first: a signal is explained only
by its possible causes. Then come the exception, the last output, and the next step. When a rank fails, torch mostly prints errors about
other ranks ("connection closed by peer"), so `is_secondary` finds out whether another rank is to blame. `verdict` compares several ranks."""

import re
import signal
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from engine.core.failures.known import SHELL, Confidence, Found, find
from engine.core.failures.text.evidence import Ending, ending
from engine.core.failures.text.prefixes import untagged
from engine.core.failures.text.styles import has_styles, unwrapped
from engine.core.failures.text.tracebacks import (
    EXCEPTION,
    OF_CHILD,
    Traceback,
    all_chains,
    crash_frames,
    exception_line,
    last_chain,
    shortened,
)
from engine.core.patterns import late
from engine.core.run.health_events import ON_NAN
from engine.core.run.state import status_words
from engine.core.tables import read_table
from engine.core.terminal_text import SEQUENCE
from engine.core.words import limited

TAIL = 65_536  # bytes at the end of the output that are read
MAX_WORDS = 12_288  # bytes at the end of the output that are read if it has no traceback

MOST_TRACEBACKS, BEFORE = 8, 2048  # how many tracebacks are read, and how many bytes before the first of them

_TRACEBACK = b"Traceback (most recent call last):"

MAX_DETAIL = 300  # longest explanation of a failure, in characters


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    headline: str  # `rank 2 was killed by SIGKILL`
    detail: str  # one line: the exception, or the meaning of the signal
    traceback: str  # the last traceback that it printed; empty: none
    hint: str  # the next step
    fix: str = ""  # a line to copy, a command or a setting of a profile; empty: none
    cause: str = ""  # the id of the known cause, or one word: `exception`, `exit`, `lost`, `start`, `asked`
    confidence: Confidence = "certain"
    heals: bool = True  # whether the same run may succeed if it starts again, without a change by somebody
    line: str = ""  # the line that shows the known cause
    last: tuple[str, ...] = ()  # the last lines, if nothing better is known
    waits: bool = False  # whether it timed out waiting for others
    ranks: frozenset[int] = frozenset()  # ranks that its message names as the cause
    blames: str = ""  # a headline about these ranks, with `{who}`
    rank: int | None = None  # the rank whose failure it only reports; None: its own
    raised: str = ""  # the exception that ended it, one line: `ValueError: bad batch`; empty: none did


class _Signal(NamedTuple):
    """A row of `signals.tsv`."""

    name: str
    own: str  # not empty: the loss of another rank does not cause it
    meaning: str
    hint: str
    fix: str = ""


_SIGNALS = {int(signal.Signals[row.name]): row for row in read_table(__package__, "signals", _Signal)}
_UNKNOWN_SIGNAL = _Signal("", "", "", "look at what sends signals on this node")
_CRASH_HEADER = "Stack of the thread that crashed (most recent call first):"
_HINT_OF_CRASH = "update or rebuild the library that the first of these lines calls, or avoid the call"

_FRAMES = late(r'^  File "([^"\n]{1,500}", line \d{1,7})', re.MULTILINE)

_ADDRESS = late(r"0x[0-9a-f]+")  # differs from process to process
MAX_PLACE = 400  # longest text for an exception and its place, in characters

_CORRECT = "correct it where the traceback ends, then restart the run"
_ANOTHER_FIRST = "another rank ended first: look for one that was killed, was lost, or raised another exception"
_RANK_PREFIX = late(r"^\[rank\d+\]: ?", re.MULTILINE)
"""torch's excepthook puts this before every line (torch 2.3 and newer, with a process group)."""
_ABORTED = late(r"^[ \t]*what\(\): +(?P<said>.+)", re.MULTILINE)
_MPI_ERR_UNKNOWN = 14  # Open MPI's, in its mpi.h


def is_secondary(output: bytes | str, mpi_status: int | None = None, status: int | None = None) -> bool:
    """Whether the end of a rank's output blames another rank, so that its failure is a consequence. The first of chained tracebacks decides:
    a rank that fails and then loses its connection during cleanup is still the cause. `mpi_status`: its exit status if mpirun started it,
    else None. Open MPI 5 ends a rank that has lost a peer on another node with MPI_ERR_UNKNOWN, without an exception in the rank; what its
    libraries print then varies."""
    text = plain(output)
    if status is not None and _SIGNALS.get(-status, _UNKNOWN_SIGNAL).own:
        return False
    told = ending(text)
    if not told.chain:
        blames = mpi_status == _MPI_ERR_UNKNOWN or find(_last_words(text), "consequence", context=text) is not None
        return blames and find(told.words) is None
    if find(told.chain[0].message, "consequence", context=_frames(told.chain)) is None:
        return False
    # the message may have the cause, such as InfiniBand's error in nccl's
    return not any(find(one.message, context=text) for one in told.chain)


def why_again(said: Explanation) -> tuple[str, str]:
    """Why the same run would fail again, as a part of a sentence, and where the exception was raised. The first is empty if the cause may
    heal or is only likely. The second is the same for the same exception at the same place, and empty if no exception ended the rank."""
    why = said.detail.removesuffix(".") if not said.heals and said.confidence == "certain" else ""
    frames = _FRAMES.findall(said.traceback)
    is_raised = bool(frames and said.raised) and not said.waits
    return why, limited(f"{_ADDRESS.sub('', said.raised)} at {frames[-1]}", MAX_PLACE) if is_raised else ""


@lru_cache(maxsize=256)
def explain(
    rank: int | None,
    status: int | None,
    output: bytes | str,
    reason: str = "",
    by: str = "",
    context: str = "",
    python: str = "",
) -> Explanation:
    """Explains why a rank failed. Cached, because the view of a holding run is built ten times a second.

    Args:
        status: the exit code, or minus the number of a signal; None: unknown.
        reason: why it could not be started, or how it was lost, as the node's agent reports it.
        by: the user who sent the signal that ended it; empty: unknown.
        context: what its launcher printed.
        python: the Python that it ran; empty: not known.
    """
    text, who = plain(output), "the process" if rank is None else f"rank {rank}"
    if status is None or reason:
        return _about_loss(who, status, text, reason)
    if by and status < 0:
        return _about_request(who, status, by)
    told = ending(text, by_itself=True) if status > 1 else ending(text)  # a key of its cache that others use too
    if status == -signal.SIGABRT and _aborted_as_it_ended(text, told):
        status = 1
    ended_by = -status if status < 0 else status - SHELL
    is_known = ended_by in _SIGNALS and (status < 0 or not told.certain)
    if status < 0 or is_known:
        said = _about_signal(who, ended_by, text, told, context)
        if status > 0 and ended_by != signal.SIGINT:
            shell = f"a shell reports {status} for a program that was killed by {status_words(-ended_by)}"
            said = replace(said, headline=f"{who} exited with {status}", detail=_one_line(f"{shell}: {said.detail}"))
        return said
    return _about_exit(rank, status, text, told, context, python)


def _about_loss(who: str, status: int | None, text: str, reason: str) -> Explanation:
    """The explanation of a rank that was lost, or could not be started."""
    if status is None:
        headline, hint, cause = f"{who} was lost", "check its node, then restart the run", "lost"
    else:
        headline, cause = f"{who} could not be started", "start"
        hint = "correct what the reason names, then restart the run"
    end = Explanation(
        headline=headline,
        detail=_one_line(reason),
        hint=hint,
        cause=cause,
        traceback=shortened(last_chain(text, fatal=False)),
    )
    known = find(reason) if status is not None else None
    return _with(end, known, detail=reason) if known else end


def _about_request(who: str, status: int, by: str) -> Explanation:
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
        headline=f"{who} was killed by {status_words(status)}",
        detail=f"{by} sent it with rankdeck kill, or in the app",
        traceback="",
        hint="",  # what a restart does is said beside it
        cause="asked",
    )


def _about_signal(who: str, number: int, text: str, told: Ending, context: str) -> Explanation:
    """The explanation of a process that a signal has ended. Considers only possible causes of that signal."""
    meant = _SIGNALS.get(number, _UNKNOWN_SIGNAL)
    name = status_words(-number)
    end = Explanation(
        headline=f"{who} was killed by {name}",
        detail=meant.meaning,
        traceback="" if told.went_on or number == signal.SIGKILL else shortened(last_chain(text, fatal=False)),
        hint=meant.hint,
        fix=meant.fix,
        cause="E1" if number == signal.SIGKILL else "E2",
        confidence="likely",
        last=told.last,
    )
    if frames := crash_frames(text):
        end = replace(end, traceback=shortened([Traceback(lines=(_CRASH_HEADER, *frames), message="")]))
        if number in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT):  # their hint asks for the Python line
            end = replace(end, hint=_HINT_OF_CRASH, fix="")
    said = f"{told.words}\n{''.join(one.message for one in told.chain)}\n{context}"
    if number == signal.SIGINT:
        return _interrupted(end, who, text)
    if number == signal.SIGABRT and (aborted := _ABORTED.search(said)):
        end = replace(end, detail=_one_line(f"native code aborted: {aborted['said']}"))
    if known := find(said, context=f"{text}\n{context}", ended_by=name.removeprefix("SIG")):
        if known.cause.yields_to:
            known = find(f"{text}\n{said}", letters=known.cause.yields_to) or known
        has_said = number == signal.SIGABRT and _ABORTED.search(said)
        return _with(end, known, detail=end.detail if has_said else known.line)
    if consequence := not meant.own and find(_last_words(text), "consequence", context=text):
        return replace(end, hint=_ANOTHER_FIRST, fix="", cause=consequence.cause.id)
    return end


def _interrupted(end: Explanation, who: str, text: str) -> Explanation:
    """The explanation of Ctrl-C: where the process was, and whether it waited there for something."""
    chain = last_chain(text, fatal=True)
    meant = _SIGNALS[signal.SIGINT]
    end = replace(end, headline=f"{who} was interrupted", detail=meant.meaning, hint=meant.hint, fix="")
    end = replace(end, cause="E2", confidence="certain")
    if chain and (known := find(_frames(chain), "place", context=text)):
        return _with(end, known, detail=known.detail)
    return end


def _about_exit(rank: int | None, status: int, text: str, told: Ending, context: str, python: str) -> Explanation:
    """The explanation of a process that ended by itself, with an exit status."""
    who, chain = "the process" if rank is None else f"rank {rank}", told.chain
    messenger = find(chain[-1].message, "messenger", context=text) if chain else None
    named: int | None = None
    reporter = chain[-1].message if messenger is not None else ""
    if messenger is not None:
        named = min(messenger.ranks, default=None)
        chain, before = _reported(chain, text)
        if not chain and messenger.status < 0:
            who = who if named is None else f"rank {named}"
            end = _about_signal(who, -messenger.status, before, ending(before), context)
            return replace(end, rank=named, line=messenger.line, traceback="")
        if not chain:
            told, messenger = ending(before), None if told.certain else messenger
            chain = told.chain
    raised = _to_blame(chain)
    named = raised.rank if raised and raised.rank is not None else named
    if rank is None and len(chain) > 1 and (child := OF_CHILD.match(chain[-2].lines[-1])):
        named = int(child["rank"])  # of the only torch.multiprocessing.spawn
    who = who if named is None else f"rank {named}"
    if raised is None:
        fallback = exception_line(told_chain[-1]) if (told_chain := ending(text).chain) and not told.said else ""
        end = Explanation(
            headline=f"{who} exited with {status}", detail=_one_line(told.said or fallback), traceback=shortened(last_chain(text, fatal=False)),
            hint="the last lines say what the program did", cause="exit", confidence="seen", last=told.last, rank=named,
        )  # fmt: skip
        if told.handled:
            end = replace(end, last=(*end.last, f"(handled earlier: {limited(told.handled, MAX_DETAIL)})"))
        words = told.words
    else:
        detail = exception_line(raised)
        name = EXCEPTION.match(detail)
        code = [line.strip() for line in raised.lines if line.startswith("    ") and line.strip(" ~^")]
        shown = f"{detail}: {code[-1]}" if name and not name["message"] and code else detail  # `assert a % b == 0`
        end = Explanation(
            headline=f"{who} raised {name['name'].rpartition('.')[2]}" if name else f"{who} exited with {status}", detail=_one_line(shown),
            traceback=shortened(list(chain) if messenger or len(raised.lines) > 1 else last_chain(text, fatal=False)),
            hint=_CORRECT if len(raised.lines) > 1 else "look for the place where it is raised, then restart the run",
            cause="exception" if name else "exit", confidence="certain" if told.certain else "likely", rank=named,
            raised=_one_line(detail) if name else "", line=_one_line(messenger.line) if messenger else "",
        )  # fmt: skip
        if raised.message.startswith("KeyboardInterrupt"):
            return _interrupted(end, who, text)
        words = raised.message
    everything = f"{text}\n{context}"
    known = find(words, context=everything)
    for one in reversed(chain) if known is None else ():
        known = known or find(one.message, context=everything)
    if known is None and raised is not None and messenger is None and find(raised.message, "messenger"):
        known = find(told.words, context=everything)
    if known is None and raised is None and reporter:
        known = find(reporter, context=everything)  # Ray's says what happened to the worker
    if known is not None:
        if known.cause.yields_to:
            known = find(text, letters=known.cause.yields_to, context=everything) or known
        return _with(end, known, detail=known.detail or end.detail, python=python)
    if known := find(words if chain else _last_words(text), "consequence", context=_frames(chain) or text):
        return replace(end, hint=_ANOTHER_FIRST, fix="", cause=known.cause.id)
    return end


def _reported(chain: Sequence[Traceback], text: str) -> tuple[tuple[Traceback, ...], str]:
    """The exception that a messenger reports, and the text before the messenger's own."""
    if len(chain) > 1:
        return tuple(chain[:-1]), text
    lines = text.split("\n")
    head = chain[0].raised_at - len(chain[0].lines) + 1
    begin = next(
        (at for at in range(chain[0].raised_at, -1, -1) if lines[at].endswith("(most recent call last):")), max(0, head)
    )
    before = "\n".join(lines[: begin if len(chain[0].lines) > 1 else chain[0].raised_at])
    later = all_chains("\n".join(lines[chain[0].raised_at + 1 :]), fatal=True)
    earlier = all_chains(before, fatal=False)  # also of a thread
    found = next((tuple(one) for one in (later[-1:] + earlier[::-1]) if one[-1].message), ())
    return found or ending(before).chain, before


def _with(end: Explanation, known: Found, *, detail: str, python: str = "") -> Explanation:
    """An explanation with the facts about its known cause."""
    if python:
        known = known._replace(words={**known.words, "python": python})
    return replace(
        end,
        detail=_one_line(known.detail or detail),
        hint=known.hint,
        fix=known.fix,
        cause=known.cause.id,
        confidence="likely" if known.cause.likely else "certain",
        heals=known.cause.heals,
        line=_one_line(known.line),
        waits=known.cause.waits,
        ranks=known.ranks if known.cause.blames else frozenset(),
        blames=known.cause.blames,
    )


def _aborted_as_it_ended(text: str, told: Ending) -> bool:
    """Whether an exception ended a process that aborted during its exit, as with torch if a thread of a process group still runs. A
    process that aborts for another reason prints it after the exception."""
    last = told.chain[-1].message.strip().rpartition("\n")[2] if told.chain else ""
    if not last:
        return False
    after = text.rpartition(last)[2]
    return _ABORTED.search(after) is None and find(after) is None


def _to_blame(chain: Sequence[Traceback]) -> Traceback | None:
    """The exception to explain: the last of a chain, unless it is only a consequence of other ranks' ends; of a group the first member."""
    if not chain or not chain[-1].message:
        return None
    group = next((number for number, one in enumerate(chain) if one.is_group), None)
    if group is not None:
        return next((one for one in chain[group:] if not one.is_group and one.message), chain[-1])
    first, last = chain[0], chain[-1]
    return first if first.message and find(last.message, "consequence", context=_frames(chain)) else last


def _frames(chain: Sequence[Traceback]) -> str:
    return "\n".join(line for one in chain for line in one.lines)


def _last_words(text: str) -> str:
    return text[-4096:]


def _one_line(text: str) -> str:
    return limited(" ".join(text.split()), MAX_DETAIL)


def plain(said: bytes | str) -> str:
    """The end of a process's output without colours and tags, with `\\n` as the only line end, and tracebacks as Python prints them."""
    if isinstance(said, str):
        return said[-TAIL:]
    return _plain(said[-TAIL:])


@lru_cache(maxsize=1024)
def _plain(said: bytes) -> str:
    begin = len(said) - MAX_WORDS
    at = len(said)
    for _ in range(MOST_TRACEBACKS):  # with all that the last exception may be chained to
        if (at := said.rfind(_TRACEBACK, 0, at)) < 0:
            break
        begin = min(begin, at - BEFORE)
    if begin > 0:
        said = said[said.find(b"\n", begin) + 1 :]
    text = said.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or not text.isascii():
        text = SEQUENCE.sub("", text)
    if "[rank" in text:
        text = _RANK_PREFIX.sub("", text)
    if "Traceback (m" in text and not ("\nTraceback (m" in text or text.startswith("Traceback")):
        text = "\n".join(untagged(text.split("\n")))
    return "\n".join(unwrapped(text.split("\n"))) if has_styles(text) else text
