"""`rankdeck diagnose`: explains a failure, of a run from its journal and output, of any other job from its log."""

import contextlib
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from engine.client.history import news_of
from engine.commands.tail import STREAMS
from engine.core.errors import RankdeckError, UsageError
from engine.core.failures.diagnosis import plain
from engine.core.failures.known import find
from engine.core.failures.launcher_log import read_logs
from engine.core.failures.verdict import Verdict, Witness, find_verdict, remarks
from engine.core.run.machine import states
from engine.core.run.state import RunState, rank_word, run_word
from engine.core.views.views import failure_view, seen_words, witnesses
from engine.runs.foreign.traces import read_traces
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_tail
from engine.runs.replay import read_journal

HEAD, TAIL = 1 << 19, 1 << 22
"""Bytes read of a log: its beginning, which shows failures of the start, and its end, which shows most others."""

MIDDLE = 1 << 29  # bytes before the end that are searched for tracebacks: a rank may have failed long before others
MOST_BLOCKS = 8  # blocks between beginning and end that are kept because they have tracebacks
MOST_FILES = 4096  # most files of one job
LEAST = 1 << 16  # bytes read of each file at least, if there are many
OUT_TAIL, ERR_TAIL = 1 << 14, (1 << 15) + (1 << 14)  # bytes read of the end of a rank's stdout and stderr
WORDLESS = ("exit", "lost", "start")  # causes without an explanation, for which mpirun's log may have a better one
BLOCK = 1 << 18  # bytes read at a time
MOST_TAILS = 256  # most ranks whose output is read; those that failed first come first
LAST_LINES = 15  # lines shown if no known failure was found


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one job."""

    subject: str  # the run's id, or the name of the log
    state: str  # of a run: `failed`, `holding`, `running`…; of a log: `failed`, or `unknown` without a known failure
    attempt: int | None  # the attempt of a run that this is about
    verdict: Verdict | None  # none: nothing failed, or no known failure was found
    noticed: tuple[str, ...]  # known problems that were seen but did no harm by themselves
    last_lines: tuple[str, ...]  # the end of a log without a known failure, raw
    note: str  # a limitation of this result; may be empty

    @property
    def exit_status(self) -> int:
        """0 if a cause was found or nothing failed, 1 if a log shows no known failure."""
        return 0 if self.verdict is not None or self.attempt is not None else 1


# --- runs --------------------------------------------------------------------------------------------------------------


def diagnose_run(paths: RunPaths, attempt: int | None = None) -> Diagnosis:
    """Why a run failed. The run may be active, holding or ended. `attempt`: which attempt; None: the newest one with a failure. Raises
    SupervisorError: the journal can't be read; UsageError: there is no such attempt."""
    # The last state of each attempt; the next attempt does not keep how ranks ended.
    by_attempt = {state.attempt: state for _, _, state in states(read_journal(paths.journal))}
    if not by_attempt:
        raise UsageError(f"{paths.run} has not started", hint="rankdeck clean removes it")
    newest = max(by_attempt)
    if attempt is not None and attempt not in by_attempt:
        raise UsageError(f"{paths.run} has no attempt {attempt}", hint=f"the newest is {newest}")
    failed = [one for one, state in by_attempt.items() if failure_view(state, {}) is not None]
    chosen = attempt if attempt is not None else max(failed, default=newest)
    state = by_attempt[chosen]
    python = ""
    with contextlib.suppress(RankdeckError):
        python = read_plan(paths).shown_python
    told = witnesses(state, _tails(paths, state, chosen), python)
    traces = read_traces(paths.attempt(chosen), len(state.ranks), state.generation_since)
    verdict = find_verdict(told, traces.waits)
    if verdict is None and (failure := failure_view(state, {})) is not None:  # the run failed before any rank started
        verdict = Verdict(
            cause="start", rank=None, headline=failure.headline, detail=failure.detail,
            hint="correct what the reason names, then restart the run", fix="rankdeck check PROFILE", traceback="",
        )  # fmt: skip
    if verdict is not None:
        verdict = _with_word_of_mpirun(verdict, paths, chosen)
        followed = [one for one in (seen_words(state, verdict.rank), *verdict.followed, news_of(paths)) if one]
        verdict = msgspec.structs.replace(verdict, followed=tuple(followed))
    return Diagnosis(
        subject=paths.run,
        state=run_word(by_attempt[newest]),
        attempt=chosen,
        verdict=verdict,
        noticed=(*remarks(told), *traces.damaged),
        last_lines=(),
        note=f"this is attempt {chosen}; attempt {newest} is newer" if chosen < newest else "",
    )


def _tails(paths: RunPaths, state: RunState, attempt: int) -> dict[int, bytes]:
    """The end of the ranks' output; failed ranks come first. stderr comes last because it decides; nccl warns on stdout."""
    urgency = [(rank_word(phase) not in ("failed", "lost"), getattr(phase, "order", 0)) for phase in state.ranks]
    tails = {}
    for rank in sorted(range(len(urgency)), key=urgency.__getitem__)[:MOST_TAILS]:
        out, err = (paths.log(attempt, rank, stream) for stream in STREAMS)
        tails[rank] = read_tail(out, OUT_TAIL) + b"\n" + read_tail(err, ERR_TAIL)
    return tails


def _with_word_of_mpirun(verdict: Verdict, paths: RunPaths, attempt: int) -> Verdict:
    """Adds the cause from mpirun's log if the ranks' output has none."""
    found = find(plain(read_tail(paths.mpirun_log(attempt)))) if verdict.cause in WORDLESS else None
    if found is None:
        return verdict
    return msgspec.structs.replace(
        verdict,
        cause=found.cause.id,
        detail=found.detail or found.line,
        hint=found.hint,
        fix=found.fix,
        evidence=(*verdict.evidence, found.line),
    )


# --- logs --------------------------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """One file of a job, or standard input."""

    name: str
    rank: int | None  # the rank that its name tells
    text: str
    left_out: int  # bytes that were not read


def diagnose_files(names: Sequence[str]) -> Diagnosis:
    """Why a job failed, from the logs of its launcher, of its ranks, or of ssh. `names`: paths of files, or of folders whose logs are read;
    `-`: standard input. Raises UsageError: one can't be read, a folder has no logs, or there are too many."""
    logs = read_files(names)
    told = read_logs((log.name if len(logs) > 1 else "", log.rank, log.text) for log in logs)
    verdict = find_verdict(told)
    end = logs[-1].text[-(1 << 16) :]
    lines = [line for line in end.splitlines() if line.strip()][-LAST_LINES:] if verdict is None else []
    whole = [Witness(rank=None, output=log.text[-(1 << 16) :], failed=False) for log in logs[:1]]
    left_out = sum(log.left_out for log in logs)
    return Diagnosis(
        subject="standard input" if list(names) == ["-"] else names[0] if len(names) == 1 else f"{len(logs)} files",
        state="failed" if verdict is not None else "unknown",
        attempt=None,
        verdict=verdict,
        noticed=tuple(remarks(told if any(one.rank is not None for one in told) else [*told, *whole])),
        last_lines=tuple(lines),
        note=f"{left_out >> 20} MiB in the middle were not read" if left_out else "",
    )


def read_files(names: Sequence[str]) -> list[Log]:
    """The logs of one job. Arguments and errors as for `diagnose_files`."""
    paths = [path for name in names for path in _files(name)]
    if len(paths) > MOST_FILES:
        raise UsageError(f"{len(paths)} files are too many for one job", hint=f"name at most {MOST_FILES}")
    share = max(LEAST, TAIL // len(paths))
    return [_read(path, rank, share) for path, rank in zip(paths, ranks_in_names(paths), strict=True)]


_OF_RANK = re.compile(r"(?:attempt_\d+/(\d{1,6})/[^/]*|(?:^|[/_.-])(?:rank|r)[_.=-]?(\d{1,6})(?:[._/-][^/]*)?)$")
"""Paths that name a rank: torchrun's `--log-dir`, `rank_3.log`, `log.r3`."""
_LOGS = re.compile(r"\.(?:log|out|err|txt|stdout|stderr)(?:\.\d+)?$|^(?:stdout|stderr|output|log)$")
_STDERR = re.compile(r"std?err")


def ranks_in_names(paths: Sequence[str]) -> list[int | None]:
    """The rank of each file by its name. Names that differ only in one number, from 0 on without a gap, name ranks too: `job-77-0.out`, `job-77-1.out`."""
    named = [int(found[1] or found[2]) if (found := _OF_RANK.search(path)) else None for path in paths]
    if any(rank is not None for rank in named):
        return named
    numbers = [re.findall(r"\d{1,9}", Path(path).name) for path in paths]
    shapes = {re.sub(r"\d{1,9}", "#", Path(path).name) for path in paths}
    if len(paths) < 2 or len(shapes) != 1:
        return named
    columns = list(zip(*numbers, strict=True))
    differing = [column for column in columns if len(set(column)) > 1]
    if len(differing) == 1 and sorted(map(int, differing[0])) == list(range(len(paths))):
        return [int(word) for word in differing[0]]
    return named


def _files(name: str) -> Iterable[str]:
    """The files of a name: itself, or the logs in a folder; stdout before stderr, which decides."""
    if name == "-" or not Path(name).is_dir():
        return [name]
    found = [
        str(Path(folder) / file)
        for folder, _, files in os.walk(name)
        for file in files
        if _LOGS.search(file) and not (Path(folder) / file).is_symlink()
    ]
    if not found:
        raise UsageError(f"{name} has no logs", hint="name files, or a folder with *.log, *.out or *.err")
    return sorted(found, key=lambda path: (str(Path(path).parent), _STDERR.search(Path(path).name) is not None, path))


def _read(name: str, rank: int | None, most: int) -> Log:
    try:
        if name == "-" and sys.stdin is None:
            raise UsageError("standard input is closed", hint="rankdeck diagnose LOG reads a file")
        if name == "-":
            data, left_out = _ends(sys.stdin.buffer, most)
        else:
            with Path(name).open("rb") as file:
                data, left_out = _ends(file, most)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror}") from None
    return Log(name, rank, data.decode(errors="replace"), left_out)


def _ends(file: BinaryIO, most: int = 0) -> tuple[bytes, int]:
    """The beginning and the end of a file of any size, with blocks between them that have tracebacks, and how many bytes were left out.

    Uses bounded memory, for pipes too. `file`: a regular file, or a pipe. `most`: bytes of its end; 0: `TAIL`.
    """
    most = most or TAIL
    parts = [file.read(HEAD)]
    left_out = 0
    if file.seekable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        skipped = os.fstat(file.fileno()).st_size - len(parts[0]) - most - MIDDLE
        if skipped > 0:
            file.seek(skipped, os.SEEK_CUR)
            left_out += skipped
    blocks: deque[bytes] = deque()
    kept = follows = 0
    while block := file.read(BLOCK):
        blocks.append(block)
        kept += len(block)
        while kept - len(blocks[0]) >= most:
            first = blocks.popleft()
            kept -= len(first)
            if (follows or b"Traceback (most" in first) and len(parts) <= MOST_BLOCKS:
                follows = 0 if follows else 1  # a traceback may go on in the next block
                parts.append(first)
            else:
                left_out += len(first)
                parts += [b"\n"] if parts[-1] != b"\n" and len(parts) <= MOST_BLOCKS else []
    return b"".join((*parts, b"\n" if left_out and parts[-1] != b"\n" else b"", *blocks)), left_out
