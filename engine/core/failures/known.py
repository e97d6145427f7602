"""Finds known failures in a text.

The failures are data: one TOML file for each subject in `causes/`, one table for each entry. The files are read when something has failed for
the first time, which takes about 4 ms; a pattern is compiled at its first use.

The first letter of an id says where the failure comes from: P the program, A its arguments, F files and checkpoints, H hubs, downloads and trackers,
I installed packages and compilers, R memory, C CUDA, G gloo, K rankdeck's own mpi and ucc, B `monitored_barrier`, T the store, rendezvous and
setup of groups, N nccl, D training in parallel, E how processes end, W workload managers, M MPI, U ucc and ucx, S ssh, srun and pbs_tmrsh.
"""

from __future__ import annotations

import pkgutil
import re
import shlex
import signal
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from engine.core.patterns import late

if TYPE_CHECKING:
    import regex

Kind = Literal["cause", "consequence", "remark", "end", "messenger", "place", "activity", "connection"]
"""`consequence`: blames another process, so it is never the root cause if another failure is known. `remark`: harmless by itself.
`end`: the launcher's report of how a process ended, with groups named `rank`, `signal` and `status`. `messenger`: only reports that another
process or exception failed; the same groups. `place`: where a process was, shown by the frames of its stack. `activity`: what the label of its bar names. `connection`: why no
agent could be started; recognised only in the output of a connection that failed."""

Speaker = Literal["", "login", "ssh", "slurm", "pbs", "node"]
"""Who writes the text of a failed connection: PAM or the login shell, ssh, srun and slurmstepd, pbs_tmrsh, or the command on the node."""

Confidence = Literal["certain", "likely", "seen"]
"""How sure a verdict is. `certain`: the text says it. `likely`: the most common reason; sentences say "probably". `seen`: only what was
printed last is known."""

FILES = tuple(
    "nccl collectives training devices mpi ucx native usage installed hub files program ends places schedulers ssh slurm pbs nodes".split()
)
"""The files in `causes/`, in the order in which they are searched: specific ones first."""

MAX_WORD = 200  # longest text of a named group in a sentence, in characters
TIMEOUT = 0.2  # seconds after which one search for a pattern is given up: the text is hostile

_PLACEHOLDERS = {"node": "NODE", "python": "the Python of the ranks", "job": "JOB"}
"""Words in sentences where they are not known."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known failure. `detail`, `hint`, `fix` and `blames` may use the named groups of `pattern` and `needs`."""

    id: str
    pattern: str  # a regex for text of many lines: `^` and `$` match at each line
    hint: str  # the next step
    examples: tuple[str, ...] = ()
    """Texts that show it, for a test. Not needed if a text in `tests/data/failures` does."""
    needs: str = ""
    """A second regex, which must match the whole output of the process: its frames, its warnings, and what its launcher says."""
    detail: str = ""  # its meaning; empty: show the program's own message
    fix: str = ""  # a line to copy: a command, or a setting of a profile
    blames: str = ""
    """A headline. Groups of `pattern` whose names begin with `rank` contain the ranks at fault: `{who}`."""
    kind: Kind = "cause"
    signals: str = "ABRT"  # signals that the failure can cause, without `SIG`. An exit code is always possible.
    likely: bool = False  # whether `detail` is only the most common reason
    heals: bool = True  # whether the same run may succeed if it starts again, without a change by somebody
    waits: bool = False
    """Whether the process only waited for others, so that a rank without an error is the cause; of a place: it may wait for ever."""
    yields_to: str = ""
    """First letters of ids that win over this one in the same process, because they are more specific."""
    speaker: Speaker = ""  # of a failed connection: who writes the text
    statuses: tuple[int, ...] = ()  # exit statuses of a failed connection for which the pattern counts; empty: all
    retry: bool = False  # of a failed connection: whether a second try within seconds may succeed
    final: bool = False  # of a failed connection: whether no other try can ever succeed, because the job is over
    gone: bool = False
    """Whether a failed connection shows that the node does not belong to the job, which goes on without it."""
    proxied: bool = False  # whether `detail` says that a connection failed at a jump host or on the way from it


class Found(NamedTuple):
    """A known failure that a text shows."""

    cause: Cause
    words: dict[str, str]
    line: str  # the line that shows it
    at: int  # index of the first character of the match

    @property
    def detail(self) -> str:
        """Its meaning; empty if the program's own message is clear."""
        said = self.cause.detail.format_map(self.words)  # some groups may be empty
        return " ".join(said.replace(" ()", "").split()).rstrip(" :")

    @property
    def hint(self) -> str:
        return self.cause.hint.format_map(self.words)

    @property
    def fix(self) -> str:
        """The line to copy. Words from the text are quoted for a shell."""
        return self.cause.fix.format_map({name: shlex.quote(word) for name, word in self.words.items()})

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that the text names as the cause."""
        named = (word for name, word in self.words.items() if name.startswith("rank"))
        return frozenset(int(number) for word in named for number in re.findall(r"\d{1,9}", word))

    @property
    def status(self) -> int:
        """The exit status that the text reports, negative for a signal; 1 if it names none."""
        named = (name for name, word in self.words.items() if name.isupper() and word)  # groups that are called `KILL`
        if word := self.words.get("signal") or next(named, ""):
            return -_signal_number(word)
        status = int(self.words.get("status") or 1)
        return SHELL - status if SHELL < status < SHELL + 65 else status


SHELL = 128  # a shell reports a child that a signal has ended as this plus the number of the signal
_SIGNAL_WORDS = {(signal.strsignal(one) or "").lower(): one for one in signal.Signals} | {"oomkilled": signal.SIGKILL}


def _signal_number(word: str) -> int:
    """The number of `9`, `SIGKILL`, `KILL` or `Killed`; SIGKILL for an unknown word."""
    if word.isdigit():
        return int(word[:3])
    if known := _SIGNAL_WORDS.get(word.lower()):
        return known
    return signal.Signals.__members__.get("SIG" + word.upper().removeprefix("SIG"), signal.SIGKILL)


@cache
def causes() -> tuple[Cause, ...]:
    """All known failures, in the order in which they are searched."""
    import tomli

    data = [pkgutil.get_data(__package__ or "", f"causes/{name}.toml") or b"" for name in FILES]
    return tuple(one for file in data for one in msgspec.convert(tomli.loads(file.decode())["cause"], list[Cause]))


@cache
def _entries(kind: Kind) -> tuple[tuple[Cause, tuple[str, ...]], ...]:
    """The entries of a kind, each with some texts. Every match of its pattern contains one of these texts. Most patterns are never compiled
    so."""
    return tuple((cause, literals(cause.pattern)) for cause in causes() if cause.kind == kind)


@cache
def literals(pattern: str) -> tuple[str, ...]:
    """Texts in lower case: each match of a pattern contains at least one of them; `("",)` if there are none."""
    return _required(pattern, 0)[0]


def _required(pattern: str, at: int) -> tuple[tuple[str, ...], int]:
    """The texts for the alternatives from an index to the end of their group, and the index behind it."""
    found: tuple[str, ...] = ()
    best: tuple[str, ...] = ("",)
    run = ""
    while at < len(pattern) and pattern[at] != ")":
        char, literal, words, step = pattern[at], "", None, 1
        if char == "\\":
            step, literal = 2, "" if pattern[at + 1].isalnum() else pattern[at + 1]
        elif char == "[":
            step = _class_length(pattern, at)
        elif char == "(":
            header = _GROUP.match(pattern, at)
            words, end = _required(pattern, header.end() if header else at + 1)
            if header and header[0][2:3] in ("=", "!", "<") and header[0][:4] != "(?P<":
                words = None  # looks around
            step = end - at
        elif char == "{":
            step = pattern.index("}", at) - at + 1
        elif char not in ".^$|*+?":
            literal = char
        at += step
        optional = pattern[at : at + 1] in ("*", "?") or pattern[at : at + 2] == "{0"
        if literal and not optional:
            run += literal.lower()
            continue
        best, run = (
            max(best, (run,), words if words and not optional else ("",), key=lambda some: min(map(len, some))),
            "",
        )
        if char == "|":
            found, best = (*found, *best), ("",)
    best = max(best, (run,), key=lambda some: min(map(len, some)))
    found = (*found, *best)
    return (found if min(map(len, found)) > 2 else ("",)), at + 1


_GROUP = late(r"\((?:\?(?:P<\w+>|<?[=!]|[a-z]*:))?")


def _class_length(pattern: str, at: int) -> int:
    """Length of the character class that begins at an index."""
    end = at + (3 if pattern[at + 1] == "^" else 2)  # `[]` and `[^]` begin with a literal bracket
    while pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end - at + 1


def find(text: str, kind: Kind = "cause", *, letters: str = "", context: str = "", ended_by: str = "") -> Found | None:
    """The most specific known failure of a kind that a text shows, or None. `text`: of any length, with `\\n` as the only line end.
    `letters`: first letters of ids that count; empty: all. `context`: text for `needs`: the whole output. Empty: `text`. `ended_by`: name
    of the signal that ended the process, without `SIG`; empty: none, or unknown."""
    lower = text.lower()
    general: Found | None = None
    for cause, words in _entries(kind):
        for word in words:
            if word in lower:
                break
        else:
            continue
        if letters and cause.id[0] not in letters:
            continue
        if general and (cause.yields_to or cause.id[0] not in general.cause.yields_to):
            continue
        if ended_by and kind == "cause" and ended_by not in cause.signals.split():
            continue
        if found := _search(cause, text, context or text):
            if not cause.yields_to:
                return found
            general = found
    return general


def find_all(text: str, kind: Kind) -> Iterator[Found]:
    """Every match of every known failure of a kind."""
    lower = text.lower()
    for cause, words in _entries(kind):
        if any(word in lower for word in words):
            try:
                for match in _compiled(cause.pattern).finditer(text, timeout=TIMEOUT):
                    yield _found(cause, text, match, _PLACEHOLDERS)
            except TimeoutError:
                continue


def find_connection_cause(text: str, speaker: Speaker, status: int | None, words: Mapping[str, str]) -> Found | None:
    """Why a connection to a node failed; None if the text shows no known cause. `text`: output of the command, with `\\n` as the only line
    end. `speaker`: `ssh`, `slurm`, `pbs` or `node`. Causes with the speaker `login` apply to all. `status`: the command's exit status;
    None: no answer in time. `words`: `node`, `python` and `job`, for the sentences."""
    for cause in causes():
        if cause.speaker not in (speaker, "login") or (cause.statuses and status not in cause.statuses):
            continue
        if found := _search(cause, text, text, words):
            return found
    return None


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    """Compiles a pattern at its first use: compiling all takes as long as starting a program."""
    import regex

    return regex.compile(pattern, regex.MULTILINE)


def _search(cause: Cause, text: str, context: str, words: Mapping[str, str] = _PLACEHOLDERS) -> Found | None:
    try:
        match = _compiled(cause.pattern).search(text, timeout=TIMEOUT)
        second = _compiled(cause.needs).search(context, timeout=TIMEOUT) if match and cause.needs else None
    except TimeoutError:
        return None
    if not match or (cause.needs and not second):
        return None
    return _found(cause, text, match, {**words, **(_groups(second) if second else {})})


def _groups(match: regex.Match[str]) -> dict[str, str]:
    return {name: " ".join((word or "").split())[:MAX_WORD] for name, word in match.groupdict().items()}


def _found(cause: Cause, text: str, match: regex.Match[str], words: Mapping[str, str]) -> Found:
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return Found(cause, {**words, **_groups(match)}, text[begin : end if end >= 0 else len(text)], match.start())
