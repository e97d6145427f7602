"""Explains a failed rank from what is known of it: its exit status, and the last that it wrote to stderr.

What torch prints when a rank fails is mostly about another rank ("connection closed by peer"), so the first question is
whose fault it was. Only then come the exception, the signal in words, and the next step. Known causes are data: a regex,
what it means, and what helps.
"""

from __future__ import annotations

import re
import signal
from functools import lru_cache

import msgspec

from engine.core.state import status_words

TAIL = 65_536
"""Newest bytes of stderr that are looked at."""

MAX_LINES = 60
MAX_BYTES = 8192
"""How much of a traceback is shown: both its ends, since the beginning says where and the end says what."""

MAX_LINE = 500
"""Characters of one line of it: some messages hold a whole tensor."""

_KEPT_BEGIN = 5
_CUT = "  …"

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
    advice: str
    """The next step."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that is known. `detail` and `advice` may use the named groups of `pattern`; empty: say what the rank said."""

    pattern: re.Pattern[str]
    detail: str
    advice: str


def _cause(pattern: str, *, detail: str = "", advice: str) -> Cause:
    return Cause(pattern=re.compile(pattern), detail=detail, advice=advice)


CAUSES: tuple[Cause, ...] = (
    # --- the program itself
    _cause(
        r"can't start: (?:No such file or directory|Permission denied|Not a directory|Exec format error)",
        advice="set launch.python to a Python of this node that the user may run, and launch.workdir to a folder",
    ),
    _cause(
        r"No module named '?(?P<name>[\w.]+)",
        advice="the Python that runs the ranks lacks {name}: install it there, or set launch.python to one that has it",
    ),
    _cause(
        r"can't open file '(?P<path>[^'\n]*)'",
        detail="there is no script {path}",
        advice="correct recipe.script, or launch.workdir, which it is relative to",
    ),
    _cause(
        r"(?:SyntaxError|IndentationError|TabError): ",
        advice="correct the script; a newer syntax than launch.python knows looks the same",
    ),
    # --- memory
    _cause(
        r"CUDA out of memory|CUDA error: out of memory",
        advice="use a smaller batch, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in [env]",
    ),
    _cause(
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        advice="use a smaller model or batch, or fewer ranks on this node",
    ),
    _cause(
        r"is killed by signal: Bus error|insufficient shared memory|unable to open shared memory object"
        r"|unable to (?:mmap|write|allocate)[^\n]{0,200}</torch_|/dev/shm[^\n]{0,200}No space left on device",
        detail="shared memory (/dev/shm) is full",
        advice="make /dev/shm larger (docker: --shm-size=1g or --ipc=host), or use fewer DataLoader workers",
    ),
    _cause(
        r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Killed",
        detail="a DataLoader worker (pid {pid}) was killed, most often for memory",
        advice="use fewer DataLoader workers or a smaller batch",
    ),
    _cause(
        r"\bMemoryError\b|oom-kill|[Oo]ut of memory: Killed process|Cannot allocate memory",
        advice="use a smaller model or batch, or fewer ranks on this node",
    ),
    # --- devices and backends
    _cause(
        r"invalid device ordinal",
        detail="the rank asked for a GPU that this node does not have",
        advice="lower layout.ranks_per_node to the number of GPUs, or widen CUDA_VISIBLE_DEVICES",
    ),
    _cause(
        r"Distributed package doesn't have (?P<name>\w+) built in",
        detail="this torch was built without {name}",
        advice="choose another backend.name, or set launch.python to a Python whose torch has {name}",
    ),
    # --- rendezvous and collectives
    _cause(
        r"EADDRINUSE|[Aa]ddress already in use",
        detail="a port that it wanted to listen on is taken",
        advice="end what holds the port; let init_process_group use env://, whose port rankdeck chooses",
    ),
    _cause(
        r"op\.preamble\.length <= op\.nbytes",
        detail="ranks entered one collective with tensors of different sizes or types",
        advice="set TORCH_DISTRIBUTED_DEBUG=DETAIL in [env] to see which collective",
    ),
    _cause(
        r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation",
        detail="another rank did not enter the collective within {ms} ms",
        advice="look for the rank that is a step behind or took another branch; raise backend.timeout if it is only slow",
    ),
    _cause(
        r"Timed out after \d+ seconds waiting for clients\. (?P<here>\d+)/(?P<all>\d+) clients joined",
        detail="only {here} of {all} ranks came to the rendezvous",
        advice="look at the ranks that did not get that far; raise backend.timeout if they are only slow to import",
    ),
    _cause(
        r"Timed out initializing process group in store based barrier[^\n]{0,200}num_workers_joined=(?P<here>\d+)",
        detail="only {here} ranks came to the barrier of init_process_group",
        advice="look at the ranks that did not get that far",
    ),
    _cause(
        r"The client socket has (?:timed out after|failed to connect)",
        detail="the store of the run did not answer",
        advice="look at rank 0 if the script hosts a store of its own, otherwise restart the run",
    ),
    _cause(
        r"wait timeout after \d+ms, keys: |Socket Timeout",
        detail="it waited in the store for another rank, in vain",
        advice="look at the ranks that did not get that far; every rank must create the same groups in the same order",
    ),
    # --- files
    _cause(
        r"No space left on device",
        detail="the disk is full",
        advice="make room where the script writes its checkpoints and data",
    ),
    _cause(
        r"PermissionError: |Permission denied", advice="make that file readable, or writable, for the user of the run"
    ),
)
"""Looked through in this order: what is more special stands first."""

_BLAMES_ANOTHER = re.compile(
    r"Connection closed by (?:remote )?peer"  # G1, N7: gloo, nccl
    r"|Connection reset by peer"  # G1
    r"|(?:Read|Write) error \[[^\]\n]*\]:\d+: Broken pipe"
    r"|Application timeout caused pair closure"  # G3: gloo, after the timeout that was reported before it
    r"|Failed to recv, got 0 bytes|recvValue failed|sendBytes failed"  # T4: the store's host is gone
    r"|Did the remote server shutdown or crash"
    r"|remote process exited or there was a network error|ncclRemoteError"  # N5
    r"|NCCL communicator was aborted on rank"
    r"|Sending process \d+ closing signal SIGTERM"  # E3: torchrun ends the innocent
    r"|the process of rank [\d, ]+ has ended|ranks? [\d, ]+: leaves the group"  # rankdeck.c10d
)
"""Ids are those of the failure knowledge base."""
_LAST_WORDS = 4096
"""Characters that count as the last words of a rank that left no traceback."""

_ADVICE = "read the end of its stderr and stdout"
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

_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|[@-Z\\^_])")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""torch's excepthook puts this before every line (torch 2.3 and newer, once a process group exists)."""
_HEADER = re.compile(r"(?:  \+ Exception Group )?Traceback \(most recent call last\):[ \t]*$")
_INNER_HEADER = re.compile(r"^(?:\s*\||.*\bOriginal Traceback)")
"""A traceback that is part of a message: of an exception group's member, of a DataLoader's worker."""
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_HARMLESS = ("Exception ignored in", "Exception in thread", "Error in atexit.")
"""Begins of the line before a traceback that did not end the process."""
_UNCOMPILED = re.compile(r'^  File "[^"\n]*", line \d+$')
"""Where a script that can't be compiled is shown without a traceback."""
_SYNTAX_ERROR = re.compile(r"(?:Syntax|Indentation|Tab)Error: ")
_GROUP_EXCEPTION = re.compile(r"  \| \S")
_EXCEPTION = re.compile(r"^(?P<name>[^\W\d][\w.]*)(?:: ?(?P<message>.*))?$")
_NATIVE_FRAME = re.compile(r"^frame #\d+: |^Exception raised from .*\(most recent call first\):$")
_NO_MESSAGE = re.compile(
    r"$|\[[WEIF]\d{4} |terminate called|Fatal Python error|Exception (?:ignored |in thread)|\S+\.py:\d+: "
)
"""Ends an exception's message: a blank line, or what others print."""
_ABORTED = re.compile(r"^[ \t]*what\(\): +(?P<said>.+)", re.MULTILINE)
_EXIT_OF_SHELL = 128
"""A shell that runs the rank adds the number of the signal that ended it to this."""


class _Traceback(msgspec.Struct, frozen=True, kw_only=True):
    """One traceback, chained ones apart. `message`: the exception's name and message, of one line or several."""

    lines: tuple[str, ...]
    message: str


# --- the questions ---------------------------------------------------------------------------------------------------


def is_secondary(stderr_tail: bytes) -> bool:
    """Whether a rank's last words blame another rank, so that its failure is a consequence.

    Where tracebacks are chained the first one decides: a rank that fails by itself and then loses its connection while
    it cleans up is still the cause.

    Args:
        stderr_tail: the newest bytes that it wrote.
    """
    text = _plain(stderr_tail)
    chain = _last_chain(text, fatal=True)
    words = chain[0].message if chain and chain[0].message else text[-_LAST_WORDS:]
    return _BLAMES_ANOTHER.search(words) is not None


def last_traceback(stderr_tail: bytes) -> str:
    """The last Python traceback with those that it is chained to, or an empty string.

    Args:
        stderr_tail: the newest bytes that a rank wrote.

    Returns:
        At most `MAX_LINES` lines and `MAX_BYTES` bytes of text, without colours, torch's `[rank0]:` and native frames.
    """
    return _shortened(_last_chain(_plain(stderr_tail), fatal=False))


@lru_cache(maxsize=16)
def explain(rank: int, status: int | None, stderr_tail: bytes, reason: str = "", by: str = "") -> Explanation:
    """Says why a rank failed. Remembered, since a run that holds is looked at ten times a second.

    Args:
        rank: its number.
        status: the exit code, or minus the number of a signal; None: nobody knows how it ended.
        stderr_tail: the newest bytes that it wrote.
        reason: what the node's agent says besides the status: that it could not be started, or how it was lost.
        by: the user who sent the signal that ended it, where that is known.
    """
    text = _plain(stderr_tail)
    raised = _to_blame(_last_chain(text, fatal=True)) if status is not None and status > 0 else None
    headline, detail, advice = _about_end(rank, status, reason, raised)
    if by and status is not None and status < 0:
        detail, advice = (
            f"{by} sent it with rankdeck kill, or with x in the app",
            "restart the run when it should go on",
        )
        return Explanation(headline=headline, detail=detail, traceback="", advice=advice)
    said = reason or (raised.message if raised else text[-_LAST_WORDS:])
    if status is not None:
        if not detail and status > 0:
            detail = next((line for line in reversed(text.split("\n")) if line.strip()), "")
        if status == -signal.SIGABRT and (aborted := _ABORTED.search(said)):
            detail = aborted["said"]
        if known := _known(said):
            detail, advice = known[0] or (known[2] if status < 0 else detail), known[1]
        elif not reason and _BLAMES_ANOTHER.search(said):
            advice = (
                "another rank ended first: look at the one that was killed, lost, or raised an exception of its own"
            )
    return Explanation(
        headline=headline, detail=_one_line(detail), traceback=_shortened(_last_chain(text, fatal=False)), advice=advice
    )


# --- one end, in words -----------------------------------------------------------------------------------------------


def _about_end(rank: int, status: int | None, reason: str, raised: _Traceback | None) -> tuple[str, str, str]:
    """Headline, detail and advice, as far as the status and the exception tell."""
    if status is None:
        return f"rank {rank} was lost", reason, "see whether its node is well, then restart the run"
    if reason:
        return f"rank {rank} could not be started", reason, "correct what the reason names, then restart the run"
    if status < 0:
        words, advice = _SIGNALS.get(-status, ("", _ADVICE))
        return f"rank {rank} was killed by {status_words(status)}", words, advice
    exception = _exception_line(raised) if raised else ""
    if status == 1 and (name := _EXCEPTION.match(exception)):
        headline = f"rank {rank} raised {name['name'].rpartition('.')[2]}"
        return headline, exception, "correct it where the traceback ends, then restart the run"
    if not exception and status - _EXIT_OF_SHELL in _SIGNALS:
        exception = f"a shell says {status} of a program that was killed by {status_words(_EXIT_OF_SHELL - status)}"
    return f"rank {rank} exited with {status}", exception, _ADVICE


def _known(text: str) -> tuple[str, str, str] | None:
    """Detail and advice of the first cause that the text shows, and the line that shows it."""
    for cause in CAUSES:
        if found := cause.pattern.search(text):
            groups = {name: value or "" for name, value in found.groupdict().items()}
            line = text[text.rfind("\n", 0, found.start()) + 1 :].split("\n", 1)[0]
            return cause.detail.format(**groups), cause.advice.format(**groups), line
    return None


def _to_blame(chain: list[_Traceback]) -> _Traceback | None:
    """The exception that a chain is about: the last, unless that one only says that others are gone by now."""
    if not chain or not chain[-1].message:
        return None
    first, last = chain[0], chain[-1]
    return first if first.message and _BLAMES_ANOTHER.search(last.message) else last


def _exception_line(raised: _Traceback) -> str:
    """`ValueError: bad batch`, the message's first line that says something."""
    lines = raised.message.split("\n")
    named = [line.strip(" |") for line in lines if line.strip(" |")]
    found = _EXCEPTION.match(named[0]) if named else None
    if found and not (found["message"] or "").strip() and len(named) > 1:
        return f"{found['name']}: {named[1]}"
    return named[0] if named else ""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


# --- tracebacks in a text --------------------------------------------------------------------------------------------


def _plain(stderr_tail: bytes) -> str:
    """The tail as text: no colours, none of torch's prefixes, `\\n` as the only line end."""
    text = stderr_tail[-TAIL:].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _RANK_PREFIX.sub("", _CONTROL_SEQUENCE.sub("", text))


def _last_chain(text: str, *, fatal: bool) -> list[_Traceback]:
    """The last traceback and those that it is chained to, oldest first.

    Args:
        text: what a rank printed.
        fatal: only what ended the process; otherwise one that ended nothing is taken too, for want of others.
    """
    lines = text.split("\n")
    heads = [at for at in range(len(lines)) if _is_head(lines, at)]
    deadly = [at for at in heads if not (at and lines[at - 1].startswith(_HARMLESS))]
    chain: list[_Traceback] = []
    end = len(lines)
    for head in reversed(deadly if fatal else deadly or heads):
        if chain and not _leads_to(lines, head, end):
            break
        chain.insert(0, _traceback(lines, head, end, chained=bool(chain)))
        end = head
    return chain


def _is_head(lines: list[str], at: int) -> bool:
    line = lines[at]
    if _HEADER.search(line):
        return _INNER_HEADER.match(line) is None
    if not _UNCOMPILED.match(line) or (at and lines[at - 1].startswith((" ", "Traceback "))):
        return False
    return any(_SYNTAX_ERROR.match(following) for following in lines[at + 1 : at + 6])


def _leads_to(lines: list[str], head: int, end: int) -> bool:
    """Whether the traceback that begins at `head` is chained to the one that begins at `end`."""
    before = next((line for line in reversed(lines[head:end]) if line.strip()), "")
    return before.strip() in _CHAINED


def _traceback(lines: list[str], head: int, end: int, *, chained: bool) -> _Traceback:
    """Takes the lines of one traceback apart.

    Args:
        lines: the whole text.
        head: index of its first line.
        end: index of the line that it ends before at the latest.
        chained: whether the next traceback follows from it, so that the line between them is kept.
    """
    in_group = lines[head].startswith("  + ")
    exception = None
    stop = end
    for at in range(head + 1, end):
        line = lines[at]
        if exception is None:
            if line and (_GROUP_EXCEPTION.match(line) if in_group else not line.startswith(" ")):
                exception = at
        elif line.startswith("Original Traceback"):
            exception = next((later for later in range(at + 1, end) if not lines[later].startswith(" ")), exception)
        elif at > exception and _NO_MESSAGE.match(line):
            stop = at
            break
    body = list(lines[head : end if chained else stop])
    if begin := _HEADER.search(body[0]):
        body[0] = body[0][begin.start() :]
    message_end = stop - head
    return _Traceback(
        lines=tuple(body), message="" if exception is None else "\n".join(body[exception - head : message_end])
    )


def _shortened(chain: list[_Traceback]) -> str:
    """A chain of tracebacks as it is shown."""
    lines = [line for one in chain for line in one.lines if not _NATIVE_FRAME.match(line)]
    lines = [line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…" for line in lines]
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) > MAX_LINES or _size(lines) > MAX_BYTES:
        begin, end = lines[:_KEPT_BEGIN], lines[max(_KEPT_BEGIN, len(lines) - MAX_LINES + _KEPT_BEGIN + 1) :]
        while len(end) > 1 and _size(begin) + _size(end) + len(_CUT.encode()) > MAX_BYTES:
            end.pop(0)
        lines = [*begin, _CUT, *end]
    return "\n".join(lines)


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
