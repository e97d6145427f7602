"""`rankdeck diagnose`: explains a failure, of a run from its journal and output, of any other job from its log."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.core.errors import UsageError
from engine.core.failures.diagnosis import plain
from engine.core.failures.known import find
from engine.core.failures.launcher_log import read_log
from engine.core.failures.verdict import Verdict, Witness, find_verdict, remarks
from engine.core.run.machine import states
from engine.core.run.state import RunState, rank_word, run_word
from engine.core.views.views import failure_view, witnesses
from engine.runs.paths import RunPaths
from engine.runs.record import read_tail
from engine.runs.replay import read_journal
from engine.runs.traces import read_traces

HEAD, TAIL = 1 << 20, 1 << 23
"""Bytes read of a log: its beginning, which shows failures of the start, and its end, which shows all others."""

OUT_TAIL, ERR_TAIL = 1 << 14, (1 << 15) + (1 << 14)
"""Bytes read of the end of a rank's stdout and stderr."""

WORDLESS = ("exit", "lost", "start")
"""Causes without an explanation, for which mpirun's log may have a better one."""

BLOCK = 1 << 18
"""Bytes read from a pipe at a time."""

MOST_TAILS = 256
"""Most ranks whose output is read; those that failed first come first."""

LAST_LINES = 15
"""Lines shown if no known failure was found."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one job."""

    subject: str
    """The run's id, or the name of the log."""
    state: str
    """Of a run: `failed`, `holding`, `running`…; of a log: `failed`, or `unknown` if no known failure was found."""
    attempt: int | None
    """Of a run: which attempt this is about."""
    verdict: Verdict | None
    """None: nothing failed, or no known failure was found."""
    noticed: tuple[str, ...]
    """Known problems that were seen but did no harm by themselves."""
    last_lines: tuple[str, ...]
    """The end of a log without a known failure, raw."""
    note: str
    """A limitation of this result; may be empty."""

    @property
    def exit_status(self) -> int:
        """0 if a cause was found or nothing failed, 1 if a log shows no known failure."""
        return 0 if self.verdict is not None or self.attempt is not None else 1


# --- runs --------------------------------------------------------------------------------------------------------------


def diagnose_run(paths: RunPaths, attempt: int | None = None) -> Diagnosis:
    """Why a run failed. The run may be active, holding or ended.

    Args:
        paths: the run's paths.
        attempt: which attempt; None: the newest one with a failure.

    Raises:
        SupervisorError: the journal can't be read.
        UsageError: there is no such attempt.
    """
    by_attempt = _by_attempt(paths)
    newest = max(by_attempt)
    if attempt is not None and attempt not in by_attempt:
        raise UsageError(f"{paths.run} has no attempt {attempt}", hint=f"the newest is {newest}")
    failed = [one for one, state in by_attempt.items() if failure_view(state, {}) is not None]
    chosen = attempt if attempt is not None else max(failed, default=newest)
    state = by_attempt[chosen]
    told = witnesses(state, _tails(paths, state, chosen))
    traces = read_traces(paths.attempt(chosen), len(state.ranks), state.generation_since)
    verdict = find_verdict(told, traces.waits)
    if verdict is None and (failure := failure_view(state, {})) is not None:  # the run failed before any rank started
        verdict = Verdict(
            cause="start", rank=None, headline=failure.headline, detail=failure.detail,
            hint="correct what the reason names, then restart the run", fix="rankdeck check PROFILE", traceback="",
        )  # fmt: skip
    if verdict is not None:
        verdict = _with_word_of_mpirun(verdict, paths, chosen)
    return Diagnosis(
        subject=paths.run,
        state=run_word(by_attempt[newest]),
        attempt=chosen,
        verdict=verdict,
        noticed=(*remarks(told), *traces.damaged),
        last_lines=(),
        note=f"this is attempt {chosen}; attempt {newest} is newer" if chosen < newest else "",
    )


def _by_attempt(paths: RunPaths) -> dict[int, RunState]:
    """The last state of each attempt; the next attempt does not keep how ranks ended."""
    newest = {state.attempt: state for _, _, state in states(read_journal(paths.journal))}
    if not newest:
        raise UsageError(f"{paths.run} has not started", hint="rankdeck clean removes it")
    return newest


def _tails(paths: RunPaths, state: RunState, attempt: int) -> dict[int, bytes]:
    """The end of the ranks' output; failed ranks come first. stderr comes last because it decides; nccl warns on stdout."""
    order = sorted(range(len(state.ranks)), key=lambda rank: _urgency(state, rank))
    return {
        rank: read_tail(paths.log(attempt, rank, "out"), OUT_TAIL)
        + b"\n"
        + read_tail(paths.log(attempt, rank, "err"), ERR_TAIL)
        for rank in order[:MOST_TAILS]
    }


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


def _urgency(state: RunState, rank: int) -> tuple[bool, int]:
    phase = state.ranks[rank]
    return rank_word(phase) not in ("failed", "lost"), getattr(phase, "order", 0)


# --- logs --------------------------------------------------------------------------------------------------------------


def diagnose_file(name: str) -> Diagnosis:
    """Why a job failed, from the log of its launcher, of one rank, or of ssh.

    Args:
        name: path of the file; `-`: standard input.

    Raises:
        UsageError: it can't be read.
    """
    try:
        if name == "-" and sys.stdin is None:
            raise UsageError("standard input is closed", hint="rankdeck diagnose --file LOG reads a file")
        if name == "-":
            data, left_out = _ends(sys.stdin.buffer)
        else:
            with Path(name).open("rb") as file:
                data, left_out = _ends(file)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror}") from None
    text = data.decode(errors="replace")
    told = read_log(text)
    verdict = find_verdict(told)
    ranks = {one.rank for one in told if one.rank is not None}
    lines = [line for line in text[-(1 << 16) :].splitlines() if line.strip()][-LAST_LINES:] if verdict is None else []
    return Diagnosis(
        subject="standard input" if name == "-" else name,
        state="failed" if verdict is not None else "unknown",
        attempt=None,
        verdict=verdict,
        noticed=tuple(remarks([*told, Witness(rank=None, output=text[-TAIL:], failed=False)] if not ranks else told)),
        last_lines=tuple(lines),
        note=f"{left_out >> 20} MiB in the middle were not read" if left_out else "",
    )


def _ends(file: BinaryIO) -> tuple[bytes, int]:
    """The beginning and the end of a file of any size, and how many bytes between them were left out.

    Uses bounded memory, for pipes too.
    """
    head = file.read(HEAD)
    if file.seekable():
        size = os.fstat(file.fileno()).st_size
        if size - len(head) > TAIL:
            file.seek(size - TAIL)
            return head + b"\n" + file.read(TAIL), size - TAIL - len(head)
        return head + file.read(TAIL), 0
    blocks: deque[bytes] = deque()
    kept = left_out = 0
    while block := file.read(BLOCK):
        blocks.append(block)
        kept += len(block)
        while kept - len(blocks[0]) >= TAIL:
            kept -= len(blocks[0])
            left_out += len(blocks.popleft())
    return head + (b"\n" if left_out else b"") + b"".join(blocks), left_out
