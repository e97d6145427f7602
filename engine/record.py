"""What a run leaves on the disk, readable whether or not its supervisor lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from engine.core.errors import SupervisorError
from engine.core.events import AnyEvent
from engine.core.machine import replay
from engine.core.plan import LaunchPlan
from engine.core.progress import RankProgress
from engine.core.series import SeriesDump
from engine.core.state import rank_word
from engine.core.story import tell_all
from engine.core.view import RunSummary, RunView, Snapshot
from engine.core.views import rank_view, run_view
from engine.paths import RunPaths

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

TAIL = 1 << 16
"""Bytes of a failed rank's stderr that an explanation is made from: several long tracebacks."""


class Saved(msgspec.Struct, kw_only=True):
    """`series.json`: curves, newest numbers, and how far each file was read (`"3.err"`: rank 3, stderr)."""

    attempt: int
    offsets: dict[str, int]
    progress: list[RankProgress]
    series: list[SeriesDump]


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """`supervisor.json`: on which host a run's supervisor lives, for front ends on other login nodes."""

    host: str
    pid: int
    version: str
    socket: str


def read_journal(path: Path) -> list[AnyEvent]:
    """The events of a journal; a torn last line is left out.

    Raises:
        SupervisorError: a line before the last can't be read.
    """
    return measure_journal(path)[0]


def measure_journal(path: Path) -> tuple[list[AnyEvent], int]:
    """The events of a journal, and how many bytes of the file they take up."""
    lines = path.read_bytes().split(b"\n")
    events: list[AnyEvent] = []
    size = 0
    for number, line in enumerate(lines[:-1], 1):
        try:
            events.append(_decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines) - 1:
                break
            hint = "a newer rankdeck may have written it"
            raise SupervisorError(f"{path}:{number}: not an event: {error}", hint=hint) from None
        size += len(line) + 1
    return events, size


def read_tail(path: Path, size: int = TAIL) -> bytes:
    """The last `size` bytes of a file; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read()
    except OSError:
        return b""


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old or the new content, never a part."""
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    partial.replace(path)


def read_plan(paths: RunPaths) -> LaunchPlan:
    """The plan of a run.

    Raises:
        SupervisorError: there is none, or another version of rankdeck wrote it.
    """
    try:
        return msgspec.json.decode(paths.plan.read_bytes(), type=LaunchPlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise SupervisorError(f"{paths.plan} can't be read: {error}", hint="rankdeck clean removes it") from None


def read_whereabouts(paths: RunPaths) -> Whereabouts | None:
    """Where the run's supervisor is, or was when it was killed; None once the run has ended."""
    try:
        return msgspec.json.decode(paths.supervisor.read_bytes(), type=Whereabouts)
    except (OSError, msgspec.MsgspecError):
        return None


def stored_snapshot(paths: RunPaths) -> Snapshot:
    """A run as its files tell it, without asking a supervisor.

    Raises:
        SupervisorError: the files can't be read.
    """
    plan, events = read_plan(paths), read_journal(paths.journal)
    state = replay(events)
    if state is None:
        raise SupervisorError(f"{paths.journal} is empty", hint="rankdeck clean removes the run")
    try:
        saved = msgspec.json.decode(paths.series.read_bytes(), type=Saved)
    except (OSError, msgspec.MsgspecError):
        saved = Saved(attempt=state.attempt, offsets={}, progress=[], series=[])
    progress = saved.progress or [RankProgress() for _ in state.ranks]
    tails = {
        rank: read_tail(paths.log(state.attempt, rank, "err"))
        for rank, phase in enumerate(state.ranks)
        if rank_word(phase) in ("failed", "lost")
    }
    return Snapshot(
        run=run_view(state, plan, progress, tails),
        ranks=tuple(rank_view(state, plan, rank, one) for rank, one in enumerate(progress)),
        series=tuple(saved.series),
        events=tuple(tell_all(events)),
    )


def write_summary(paths: RunPaths, run: RunView) -> None:
    """Keeps the line of `rankdeck ps`, so that a list of many runs needs no replay."""
    summary = RunSummary(
        run=run.run,
        name=run.name,
        state=run.state,
        world_size=run.world_size,
        backend=run.backend,
        launched_at=run.launched_at,
        ended_at=run.ended_at,
        attempt=run.attempt,
        step=run.step,
        steps=run.steps,
        loss=run.loss,
        reason=run.failure.headline if run.failure and run.state != "succeeded" else run.doing,
        reachable=True,
        host=socket.gethostname(),
    )
    replace_file(paths.summary, msgspec.json.encode(summary))


def read_summary(paths: RunPaths) -> RunSummary | None:
    """The kept line of `rankdeck ps`."""
    try:
        return msgspec.json.decode(paths.summary.read_bytes(), type=RunSummary)
    except (OSError, msgspec.MsgspecError):
        return None
