"""Reads and writes the small files of a run, with or without its supervisor; `engine.runs.replay` reads its journal and curves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.core.errors import RankdeckError, SupervisorElsewhereError, SupervisorError
from engine.core.metrics.bench import Result, parse_results
from engine.core.plan.batch.job import Scheduler
from engine.core.plan.plan import LaunchPlan
from engine.core.views.occasions import reason_of
from engine.core.views.view import RunNote, RunSummary, RunView
from engine.linux.files import open_regular, read_file, read_part, replace_file
from engine.runs.paths import RunPaths, runtime_folder

TAIL = 1 << 16  # bytes of a failed rank's stderr that are read for its explanation: several long tracebacks
MAX_METRICS = 1 << 22  # bytes of rank 0's metrics that are searched for results of collectives


Value = TypeVar("Value")


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a job, as its batch system calls it. `restarts`: how often the batch system has put the job back into the queue."""

    job: str
    node: str
    scheduler: Scheduler = "slurm"
    restarts: int = 0


def place_here() -> JobPlace | None:
    """Where in a job this process runs; None: in no job, or on the login node of one."""
    if (job := os.environ.get("SLURM_JOB_ID")) and (node := os.environ.get("SLURMD_NODENAME")):
        restarts = os.environ.get("SLURM_RESTART_COUNT", "")
        return JobPlace(job=job, node=node, restarts=int(restarts) if restarts.isdecimal() else 0)
    if job := os.environ.get("PBS_JOBID"):
        return JobPlace(job=job, node=socket.gethostname(), scheduler="pbs")
    return None


def is_in_job(submitted: Submitted) -> bool:
    """Whether this process is part of that job, on one of its nodes."""
    return (place := place_here()) is not None and place.job == submitted.job


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """`supervisor.json`: host, pid, version and socket of a run's supervisor, and the job that it runs in."""

    host: str
    pid: int
    version: str
    socket: str
    place: JobPlace | None = None


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """`job.json`: the job of a submitted run, its batch system, and the time of the submission, in seconds since the epoch.

    `next`: the job that continues the run once this one is over; empty: none. `best`: the last step that any earlier job has reached;
    None: none has. `fruitless`: how many jobs in a row, before this one, got no further. `by_user`: the user has submitted the job, and launched
    the run inside. `restarts`: see `JobPlace`.
    """

    job: str
    at: float
    next: str = ""
    best: int | None = None
    fruitless: int = 0
    scheduler: Scheduler = "slurm"
    by_user: bool = False
    restarts: int = 0
    said: str = ""  # by the batch system when it took the job


def read_value(path: Path, kind: type[Value]) -> Value:
    """The value in a JSON file of rankdeck. Raises OSError: there is none that can be read. It says why: another program may have written anything to
    the file, or another version of rankdeck something else."""
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(errno.EINVAL, f"has unexpected content: {error}", str(path)) from None


def find_value(path: Path, kind: type[Value]) -> Value | None:
    """The value in a JSON file of rankdeck; None: there is none that can be read."""
    try:
        return read_value(path, kind)
    except OSError:
        return None


def read_tail(path: Path, size: int = TAIL) -> bytes:
    """The last `size` bytes of a file; empty if it can't be read."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read()
    except OSError:
        return b""


def read_plan(paths: RunPaths) -> LaunchPlan:
    """The plan of a run. Raises SupervisorError: there is none, or another version of rankdeck wrote it."""
    try:
        return read_value(paths.plan, LaunchPlan)
    except OSError as error:
        why = error.strerror or "unknown"
        raise SupervisorError(f"{paths.plan} can't be read: {why}", hint="rankdeck clean removes it") from None


def replace_plan(paths: RunPaths, plan: LaunchPlan) -> None:
    """Replaces the plan of a run. Its time does not change, because it is the time of the launch."""
    times = paths.plan.stat()
    replace_file(paths.plan, msgspec.json.encode(plan))
    os.utime(paths.plan, (times.st_atime, times.st_mtime))


def read_whereabouts(paths: RunPaths) -> Whereabouts | None:
    """Host, pid, version and socket of the run's supervisor, even if it was killed; None once the run has ended."""
    return find_value(paths.supervisor, Whereabouts)


def read_submitted(paths: RunPaths) -> Submitted | None:
    """The job that a run was submitted as, or was launched in; None: neither."""
    return find_value(paths.job, Submitted)


def socket_of(paths: RunPaths) -> str:
    """The socket of a run's supervisor: the recorded one, because another login may have another environment; else the default."""
    where = read_whereabouts(paths)
    return where.socket if where is not None else str(paths.socket)


def runtime_files(paths: RunPaths, *, of_agent: bool = True) -> set[Path]:
    """The sockets of a run and of its agent on this machine. They may not exist.

    They are in the runtime folder of this login, or of the login of its last supervisor. `of_agent`: whether the agent's are among them.
    """
    names, where = {f"{paths.mark}.sock"}, read_whereabouts(paths)
    folders = set()
    with contextlib.suppress(RankdeckError, OSError):  # another user could put files there
        folders.add(runtime_folder())
    if where is not None and Path(where.socket).name in names:
        folders.add(Path(where.socket).parent)
    if of_agent:
        names.add(f"agent-{paths.mark}.sock")
    return {folder / name for folder in folders for name in names}


def remove_runtime_files(paths: RunPaths) -> None:
    """Removes `runtime_files` of a run that has neither supervisor nor agent, and whose lock is taken."""
    for path in runtime_files(paths):
        with contextlib.suppress(OSError):
            path.unlink()


def host_elsewhere(paths: RunPaths) -> str | None:
    """The other host on which a run's supervisor runs, or ran until it was killed; None if there is none."""
    where = read_whereabouts(paths)
    return where.host if where is not None and where.host != socket.gethostname() else None


def place_elsewhere(paths: RunPaths) -> JobPlace | None:
    """The node of a job with a run's supervisor, if that is another host; a step of the job reaches it."""
    return where.place if host_elsewhere(paths) and (where := read_whereabouts(paths)) is not None else None


def refuse_elsewhere(paths: RunPaths, command: str) -> None:
    """Leaves a run alone whose supervisor is on another host: its processes can't be seen from here, and its lock may not hold here.
    `command`: of rankdeck, which works there. Raises SupervisorElsewhereError: the supervisor is on another host."""
    if host := host_elsewhere(paths):
        hint = f"ssh -t {host} rankdeck {command} {paths.run}"
        raise SupervisorElsewhereError(f"the supervisor of {paths.run} is on {host}", hint=hint)


_OF_VIEW = [*{*RunSummary.__struct_fields__} & {*RunView.__struct_fields__} - {"nodes"}]
"""Fields that a summary has as they are in the view: all of the same name but the nodes, of which it has the names only."""


def summary_of(run: RunView, metrics: dict[str, float | None] | None = None) -> RunSummary:
    """The line of `rankdeck ps` for a run, as this host sees it, with final values of its metrics if it has ended."""
    return RunSummary(
        **{name: getattr(run, name) for name in _OF_VIEW},
        reason=reason_of(run),
        reachable=True,
        host=socket.gethostname(),
        metrics=metrics,
        stalled=run.stall is not None,
        nodes=tuple(node.name for node in run.nodes),
    )


def write_summary(paths: RunPaths, run: RunView, metrics: dict[str, float | None] | None = None) -> None:
    """Stores the line of `rankdeck ps`, so that listing many runs needs no replay."""
    replace_file(paths.summary, msgspec.json.encode(summary_of(run, metrics)))


def read_summary(paths: RunPaths) -> RunSummary | None:
    """The stored line of `rankdeck ps`; None if it can't be read."""
    found = find_value(paths.summary, RunSummary)
    if found is None or found.run == paths.run:
        return found
    return msgspec.structs.replace(found, run=paths.run)  # copied by hand


def read_note(paths: RunPaths) -> RunNote:
    """The user's note about a run; empty if there is none that can be read."""
    return find_value(paths.note, RunNote) or RunNote()


def write_note(paths: RunPaths, note: RunNote) -> None:
    """Stores the user's note about a run. Raises RankdeckError: it can't be written."""
    try:
        replace_file(paths.note, msgspec.json.encode(note))
    except OSError as error:
        raise RankdeckError(f"the note can't be written: {error.strerror}: {paths.note}") from None


def read_results(paths: RunPaths, attempt: int) -> list[Result]:
    """The results of collectives that rank 0 of an attempt has reported so far."""
    try:
        return parse_results(read_part(paths.metrics(attempt, 0), MAX_METRICS))
    except OSError:
        return []
