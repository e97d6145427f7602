"""Reads from the output of one process how it ended: the exception that nothing followed, or its last words.

The rules:

- Progress after a line (a step, a bar that advances) clears it: the program went on.
- An exception that nobody caught, shown by a traceback that begins at `<module>`, is the end. An exception that was caught and printed is
the end only if nothing of the program follows; lines that clean up or are logged as information don't count.
- A level counts: warnings, retries and debug output are no causes. The last line is often not the one that says why.
"""

import builtins
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from engine.core.failures.text.tracebacks import Traceback, all_chains, exception_line, without_frames
from engine.core.patterns import late

MAX_WORDS = 6000  # characters at the end of the output that are searched if no exception ended the process

MOST_LAST = 6  # last lines that are shown
MOST_OF_BARE = 12  # lines of the message of an exception of a library that has no traceback, up to the next empty line

Level = Literal["error", "warning", "info", ""]

_LETTERS: dict[str, Level] = {"E": "error", "F": "error", "C": "error", "W": "warning", "I": "info", "D": "info"}
_GLOG = late(r"\[?(?P<level>[IWEF])(?:\d{4} \d\d:\d\d| \w+\.(?:cpp|cc|cu|h):\d)")
_WORD = late(
    r"(?:^|[\s\[(|:<\"'=.-])(?:(?P<word>DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?=[\s\])|:>\"',]|$)|"
    r"level\"?[=:] ?\"?(?P<key>debug|info|notice|warn|error|critical|fatal))"
)
_WARNING = late(r"\b\w*Warning: |^\s*warnings?\.warn|\b[Ww]arning: |^wandb: (?:Network error|WARNING)")
_RETRY = late(
    r"(?i)\bretry(?:ing)?\b(?! (?:count|limit) exceeded)|\bfall(?:ing|s)? ?back\b|\bwill be (?:ignored|used)\b|\bnot (?:be )?enabled\b"
    r"|implementation of \w+ is used|\bskipping\b|temporary cache directory|\bignoring\b"
)
_FAULT = late(
    r"(?i)\b(?:errors?|fatal|fail\w*|can ?not|can't|could ?n[o']t|unable|invalid|abort\w*|denied|no such|not found|exceptions?|killed|"
    r"\w+error|nan|inf|diverged|exceeded|exhausted|unrecognized|unknown|missing|corrupt\w*|refus\w+|panic|too (?:many|few|large|high|low|small))\b"
)
_STEP = late(r"(?i)(?:^|[\s\[(|:])(?:global_?|train_?)?(?:step|iter(?:ation)?|epoch|update)s?\b\W{0,4}\d")
_LOSS = late(r"(?i)\bloss\b\W{0,4}\d")
_BAR = late(
    r"(?P<label>[^|\r\n]{0,80}?):? *\d{1,3}(?:\.\d+)?%\|[^|\n]{0,200}\| *(?P<at>\d[\d.,]*[kMG]?)/(?P<total>\d[\d.,]*[kMG]?)"
    r"(?: ?\[(?P<spent>[\d:]+)<(?P<left>[\d:]+))?"
)
_BARE = late(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Empty))(?:: ?.*)?$")
_CLEANUP = late(
    r"(?i)\b(?:clos|clean|shut|bye|exit|finali|sav(?:ed|ing)|upload|sync|terminat|stopp|destroy|done|finish|flush|kill|writ|see |set the environment|"
    r"for (?:more|detailed) |run |try |hint|note)"
)
_NO_ANSWER = late(
    r"[\s\W_]*$|usage: |Usage: |Try |  |\t|srun: |pdsh@|make(?:\[\d\])?: \*\*\*|wandb: |.{0,120}exited with (?:exit )?code \d+$|"
    r"\[?[IWD]\d{4} |.{0,200}Sending process \d+|Set the environment variable HYDRA|Exception ignored|.{0,160}resource_tracker|"
    r"For (?:more|detailed)|Pass --help|Run '|[*=-]{3}|Terminating|Process finished|\[?\d*\]?[+-]? +(?:Exit|Done)"
)
"""Lines that say nothing of the reason."""


class Bar(NamedTuple):
    """The state of a progress bar."""

    label: str
    at: str
    total: str
    left: str  # the time that it still needed by its own estimate: `18:55`; empty: unknown


class Ending(NamedTuple):
    """How a process ended, by its output."""

    chain: tuple[Traceback, ...]
    """The exception that ended it, after the exceptions that it is chained to; empty: no exception ended it."""
    certain: bool  # whether nobody caught it
    went_on: bool  # whether progress follows the last exception: a signal that ended the process has another reason
    advanced: bool  # whether progress follows all exceptions, also those that were caught
    handled: str  # an earlier exception that the program survived: `KeyError: 'x'`
    words: str  # the lines since the last progress that may say why: without warnings and tracebacks that were handled
    said: str  # the exception in this chain that most likely says why
    last: tuple[str, ...]  # the last lines that say anything
    bar: Bar | None  # the last bar, if it is not complete


@lru_cache(maxsize=1024)
def ending(text: str, *, by_itself: bool = False) -> Ending:
    """How a process ended. `text`: its output, without control sequences and tags. `by_itself`: whether its exit status says that it
    chose it, as with `sys.exit(3)`; Python's own for an exception is 1."""
    lines = text.split("\n")
    chains = all_chains(text, fatal=True) if "Traceback (most" in text or 'File "' in text else []
    chain = tuple(chains[-1]) if chains else ()
    if (bare := _bare(lines, chain[-1].raised_at if chain else -1)) is not None:
        chain = (Traceback(lines=tuple(lines[bare : bare + 1]), message=_bare_message(lines, bare), raised_at=bare),)
    begin = _last_progress(lines, chain[-1].raised_at if chain else len(lines))
    advanced = begin > (chain[-1].raised_at if chain else -1)
    handled = ""
    if chain and chain[-1].message and not _is_end(lines, chain[-1], begin, by_itself=by_itself):
        handled, chain = exception_line(chain[-1]), ()
    elif not chain and chains:
        handled = exception_line(chains[-1][-1])
    words = _words(lines, begin + 1, handled)
    found = [line for line in lines[-60:] if line.strip() and not _NO_ANSWER.match(line)]
    bar = next((bar for line in reversed(lines[-40:]) if (bar := read_bar(line))), None)
    own = [line for line in words.split("\n") if line.strip() and not _NO_ANSWER.match(line)]
    return Ending(
        chain=chain,
        certain=bool(chain) and chain[-1].uncaught and not by_itself,
        went_on=bool(handled) or begin > (chain[-1].raised_at if chain else -1),
        advanced=advanced,
        handled=handled,
        words=words,
        said=_telling(own).strip() or (found[-1].strip() if found else ""),
        last=tuple(line.strip() for line in found[-MOST_LAST:]),
        bar=bar if bar is not None and bar.at != bar.total else None,
    )


def level(line: str) -> Level:
    """The level of a line of glog, of Python's logging or of a record in JSON; empty: it has none."""
    if "NCCL WARN" in line:
        return "error"
    if found := _GLOG.match(line):
        return _LETTERS[found["level"]]
    if found := _WORD.search(line[:160]):
        return _LETTERS[(found["word"] or found["key"]).upper()[0]]
    return "warning" if _WARNING.search(line) or _RETRY.search(line) else ""


def is_progress(line: str) -> bool:
    """Whether a line, which is no bar, shows that training goes on: a step or epoch with its number, or a loss."""
    if not (_STEP.search(line[:80]) or _LOSS.search(line) or "'loss':" in line):
        return False
    return not _FAULT.search(line) and level(line) not in ("error", "warning")


def read_bar(line: str) -> Bar | None:
    """The last progress bar in a line."""
    if "%|" not in line:
        return None
    found = list(_BAR.finditer(line[-400:]))
    if not found:
        return None
    last = found[-1]
    return Bar(last["label"].strip(), last["at"], last["total"], last["left"] or "")


def _bare(lines: list[str], after: int) -> int | None:
    """Index of the last exception that stands alone, without a traceback, after a line."""
    for at in range(len(lines) - 1, max(after, len(lines) - 60), -1):
        if lines[at][:1].isalpha() and _BARE.match(lines[at]):
            # If no line between them is empty or has a level, it may belong to the message of the exception before it.
            is_message = after >= 0 and all(line.strip() and not level(line) for line in lines[after + 1 : at])
            return None if is_message else at
    return None


def _bare_message(lines: list[str], at: int) -> str:
    end = at + 1
    while (
        end < len(lines)
        and lines[end].strip()
        and (
            lines[end][0] in " \t"
            or _FAULT.search(lines[end])
            or ("." in lines[at].partition(":")[0] and end < at + MOST_OF_BARE)
        )
        and not level(lines[end])
    ):
        end += 1
    return "\n".join(lines[at:end])


def _last_progress(lines: list[str], raised: int) -> int:
    """Index of the last line that shows progress; -1: none. A bar counts only if it has advanced since before the exception."""
    before = {bar for line in lines[max(0, raised - 50) : raised] if (bar := read_bar(line))}
    counts = {(bar.label, bar.at) for bar in before}
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if "%|" in line:
            bar = read_bar(line)
            if bar and bar.at.strip("0.,") and (at < raised or (bar.label, bar.at) not in counts):
                return at
        elif line and is_progress(line):
            return at
    return -1


def _is_end(lines: list[str], last: Traceback, progress: int, *, by_itself: bool) -> bool:
    """Whether an exception ended the process, by the text after it."""
    after = [line for line in lines[last.raised_at + 1 :] if line.strip() and not line.startswith((" ", "\t"))]
    if progress > last.raised_at:
        words = _words(lines, progress + 1, "")
        return last.uncaught and not by_itself and not any(_FAULT.search(line) for line in words.split("\n"))
    if last.uncaught and not by_itself:
        return True
    others = [
        line
        for line in after
        if not _NO_ANSWER.match(line) and line not in last.message.split("\n")[:1] and "%|" not in line
    ]
    if last.uncaught and not any(level(line) == "error" or _FAULT.search(line) for line in others):
        return True
    continued = set() if len(last.lines) > 1 and not last.uncaught else set(last.message.split("\n"))
    return all(line in continued or level(line) in ("info", "warning") or _CLEANUP.search(line) for line in others)


def _words(lines: list[str], begin: int, handled: str) -> str:
    """The lines from an index on that may say why the process ended."""
    kept: list[str] = []
    inside = False
    size = 0
    for line in reversed(lines[begin:]):
        if size > MAX_WORDS:
            break
        kept.append(line)
        size += len(line) + 1
    said: list[str] = []
    name = handled.partition(":")[0]
    is_own = "." in name or (name != "" and hasattr(builtins, name))  # an exception of Python or a library, not a word
    for line in reversed(kept):
        if line.endswith("Traceback (most recent call last):"):
            inside = True
        elif inside and line.strip() and not line.startswith(" "):
            inside = False  # the exception itself: it was handled
        elif not inside and level(line) not in ("info", "warning") and not (is_own and line.strip() == handled):
            said.append(line)
    return without_frames("\n".join(said))


def _telling(lines: Sequence[str]) -> str:
    """The line that most likely says why: the last one that speaks of an error, else the last."""
    near = lines[-12:]
    return next(
        (line for line in reversed(near) if level(line) == "error" or _FAULT.search(line)), near[-1] if near else ""
    )
