"""Finds Python tracebacks in a rank's output, with the ones they are chained to, and shortens them."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from engine.core.failures.text.styles import MEMBER
from engine.core.patterns import late

MAX_LINES = 60
MAX_BYTES = 8192
"""Longest traceback that is shown. If a traceback is longer, its beginning and its end are kept: they show where it started, and which
exception was raised."""

MAX_LINE = 500  # longest line, in characters: some messages contain a whole tensor

_KEPT_BEGIN = 5
_CUT = "  …"

_HEADER = late(r"Traceback \(most recent call last\):(?: \(RANK (?P<rank>\d{1,6})\))?[ \t]*$")
_INNER_HEADER = late(r"^(?:\s*\||.*\bOriginal Traceback)")
"""A traceback inside a message, from a member of an exception group or from a DataLoader worker."""
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    MEMBER,
)
OF_CHILD = late(r"-- Process (?P<rank>\d{1,6}) terminated with the following error:$")
"""torch.multiprocessing.spawn prints this line before the traceback of a process that it has started."""
_HARMLESS = ("Exception ignored ", "Exception in thread", "Error in atexit.")
"""Beginnings of the line before a traceback that did not end the process."""
_OF_ANOTHER_PROCESS = late(r'^  File "[^"\n]*/multiprocessing/resource_tracker\.py", line \d')
"""The first frame of a traceback of the process that removes shared memory which workers have left: it goes on."""
_CRASH = late(r"^Fatal Python error: ", re.MULTILINE)  # the first words of faulthandler when a signal ends the process
_THREAD = late(r"^(?P<current>Current t|T)hread 0x.*\n(?P<frames>(?:  File .*(?:\n|$)){1,100})", re.MULTILINE)
"""A thread in the text after those words."""
_STARTS = late(r'  File "[^"\n]*/library/[0-9a-f]+/(?:template|forked)\.py"')
"""A frame of the code that starts the program."""
_OWN_FRAME = late(r'  File "[^"\n]*/rankdeck/_(?:autoload|collectives|imports|metrics)\.py", line \d')
"""A frame of a function of torch that rankdeck wraps."""
_UNCOMPILED = late(r'^  File "[^"\n]*", line \d+$')  # first line of a syntax error, which has no traceback
_SYNTAX_ERROR = late(r"(?:Syntax|Indentation|Tab)Error: ")
_OF_RANK = late(r"\[?[Rr]ank[ :=#]?(?P<rank>\d{1,6})\b.{0,60}:$")
"""Before a traceback: `[Rank 1 Error Snippet]:`."""
_FRAME = late(r'  File "(?P<file>[^"\n]{1,500})", line \d+, in (?P<function>.+)')
_OUTERMOST = frozenset(
    ["<module>", "_run_module_as_main", "_run_code", "run_program", "_wrap", "wrapper", "_bootstrap", "_process_worker"]
)
"""An uncaught exception has a traceback that begins in one of these functions: of a script, of spawned ranks, of torchrun's `@record`."""
_OF_HYDRA = "Error executing job with overrides"  # before a traceback from which hydra has removed its own frames
_WRAPPED = late(r"[\w.]*Error\((?P<name>[A-Z]\w*)\): (?P<rest>.*)")
"""`ray.exceptions.RayTaskError(ValueError): ray::train() (pid=7)`."""
EXCEPTION = late(r"^(?P<name>[^\W\d][\w.]*)(?:: ?(?P<message>.*))?$")
_NATIVE_FRAME = late(r"^frame #\d+: |^Exception raised from .*\(most recent call first\):$")
_NO_MESSAGE = late(
    r"$|Error in atexit\.|Traceback \(most recent|\[[WEIF]\d{4} |terminate called|Fatal Python error|Exception (?:ignored |in thread)|\S+\.py:\d+: "
    r"|[IWEF]\d{4} \d\d:|\[?\d{4}-\d\d-\d\d[ T]|srun: |slurmstepd: |pdsh@|=>> |wandb: |make(?:\[\d+\])?: |(?:mpirun|prterun|mpiexec)\b"
    r"|(?:INFO|WARNING|ERROR|CRITICAL|DEBUG)[: ]|(?:Killed|Terminated|Aborted|Segmentation fault)\b|\S{1,80} exited with code \d+$"
)
"""Ends an exception's message: a blank line, or output of other libraries."""

_PARAGRAPHS = late(r"torch\._(?:dynamo|inductor)\.|huggingface_hub\.")
"""Exceptions whose messages have empty lines: before what a compiler or a server says."""


class Traceback(msgspec.Struct, frozen=True, kw_only=True):
    """One traceback, without those it is chained to. `message`: name and message of the exception, one line or several."""

    lines: tuple[str, ...]
    message: str
    raised_at: int = 0  # index of the line with the exception in the whole text
    rank: int | None = None  # the rank that the lines around it name
    uncaught: bool = False
    """Whether it begins where the program begins: nobody caught the exception. Others were printed by an `except` or a logger."""

    @property
    def is_group(self) -> bool:
        return self.message.partition(":")[0].endswith("ExceptionGroup")


def last_chain(text: str, *, fatal: bool) -> list[Traceback]:
    """The last traceback and those that it is chained to, oldest first. `text`: output of a rank without colours and torch's prefixes,
    with `\\n` as the only line end. `fatal`: only tracebacks that ended the process; False: if there are none, others count."""
    chains = all_chains(text, fatal=fatal)
    return chains[-1] if chains else []


def all_chains(text: str, *, fatal: bool) -> list[list[Traceback]]:
    """Every traceback, each with the tracebacks that it is chained to. For the arguments, see `last_chain`."""
    lines = text.split("\n")
    heads = [
        at
        for at, line in enumerate(lines)
        if ("Traceback (m" in line or line.startswith('  File "')) and _is_head(lines, at)
    ]
    deadly = [at for at in heads if not _is_harmless(lines, at)]
    chains: list[list[Traceback]] = []
    end = len(lines)
    for head in reversed(deadly if fatal else deadly or heads):
        if chains and _leads_to(lines, head, end):
            chains[-1].insert(0, _traceback(lines, head, end, chained=True))
        else:
            chains.append([_traceback(lines, head, end, chained=False)])
        end = head
    return chains[::-1]


def _is_head(lines: list[str], at: int) -> bool:
    line = lines[at]
    if _HEADER.search(line):
        return _INNER_HEADER.match(line) is None
    if not _UNCOMPILED.match(line) or (at and lines[at - 1].startswith((" ", "Traceback "))):
        return False
    return any(_SYNTAX_ERROR.match(following) for following in lines[at + 1 : at + 6])


def _is_harmless(lines: list[str], head: int) -> bool:
    """Whether the traceback that begins at `head` did not end the process."""
    if head and lines[head - 1].startswith(_HARMLESS):
        return True
    return head + 1 < len(lines) and _OF_ANOTHER_PROCESS.match(lines[head + 1]) is not None


def _leads_to(lines: list[str], head: int, end: int) -> bool:
    """Whether the traceback that begins at `head` is chained to the one that begins at `end`."""
    before = next((line for line in reversed(lines[head:end]) if line.strip()), "")
    return before.strip() in _CHAINED or OF_CHILD.match(before) is not None


def _traceback(lines: list[str], head: int, end: int, *, chained: bool) -> Traceback:
    """Takes the lines of one traceback apart. `end`: index of the line that it ends before at the latest. `chained`: whether the next
    traceback is chained to it; then the line between them is kept."""
    exception = None
    stop = end
    for at in range(head + 1, end):
        line = lines[at]
        if exception is None:
            if line.strip() and not line.startswith(" "):
                exception = at
        elif line.startswith("Original Traceback"):
            exception = next((later for later in range(at + 1, end) if not lines[later].startswith(" ")), exception)
        elif at > exception and _NO_MESSAGE.match(line) and (line.strip() or not _PARAGRAPHS.match(lines[exception])):
            stop = at
            break
    body = list(lines[head : end if chained else stop])
    begin = _HEADER.search(body[0])
    if begin:
        body[0] = body[0][begin.start() :]
    before = lines[head - 1] if head else ""
    named = (begin and begin["rank"]) or ((found := _OF_RANK.match(before.strip())) and found["rank"])
    first = next((found["function"] for line in body[1:4] if (found := _FRAME.match(line))), "<module>")
    return Traceback(
        lines=tuple(body),
        message="" if exception is None else "\n".join(body[exception - head : stop - head]),
        raised_at=head if exception is None else exception,
        rank=int(named) if named else None,
        uncaught=first in _OUTERMOST or first.startswith("ray::") or before.startswith(_OF_HYDRA),
    )


def crash_frames(text: str) -> list[str]:
    """The frames that faulthandler prints for the thread in which a signal ended the process, innermost first; empty: it printed none."""
    crashes = list(_CRASH.finditer(text))
    threads = list(_THREAD.finditer(text, crashes[-1].end())) if crashes else []
    current = [found for found in threads if found["current"] != "T"] or (threads if len(threads) == 1 else [])
    frames = current[0]["frames"].rstrip("\n").split("\n") if current else []
    return [frame for frame in frames if not _STARTS.match(frame)]


def exception_line(raised: Traceback) -> str:
    """The first line of an exception's message that is not empty: `ValueError: bad batch`."""
    lines = raised.message.split("\n")
    named = [line.strip() for line in lines if any(map(str.isalnum, line))]
    if wrapped := _WRAPPED.match(raised.message):  # Ray: the exception of the task stands at the end
        inner = [line for line in named if re.match(rf"(?:\w+\.)*{wrapped['name']}\b", line)]
        return inner[-1] if inner else f"{wrapped['name']}: {wrapped['rest']}"
    found = EXCEPTION.match(named[0]) if named else None
    if found and not (found["message"] or "").strip() and len(named) > 1:
        return f"{found['name']}: {named[1]}"
    return " ".join(named[: 1 + named[0].endswith(":")]) if named else ""


def shortened(chain: list[Traceback]) -> str:
    """A chain of tracebacks, limited to `MAX_LINES` and `MAX_BYTES`, without native frames and those of rankdeck's own wrappers."""
    lines = [line for one in chain for line in _without_own(one.lines) if not _NATIVE_FRAME.match(line)]
    lines = [line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…" for line in lines]
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) > MAX_LINES or _size(lines) > MAX_BYTES:
        begin, end = lines[:_KEPT_BEGIN], lines[max(_KEPT_BEGIN, len(lines) - MAX_LINES + _KEPT_BEGIN + 1) :]
        while len(end) > 1 and _size(begin) + _size(end) + len(_CUT.encode()) > MAX_BYTES:
            end.pop(0)
        lines = [*begin, _CUT, *end]
    return "\n".join(lines)


def _without_own(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a traceback without frames of rankdeck's wrappers around functions of torch."""
    is_own = False
    for line in lines:
        is_own = _OWN_FRAME.match(line) is not None or (is_own and line.startswith("    "))
        if not is_own:
            yield line


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def without_frames(text: str) -> str:
    """The text without native frames of C++ exceptions, which may be longer than everything else."""
    return "\n".join(line for line in text.split("\n") if not _NATIVE_FRAME.match(line))
