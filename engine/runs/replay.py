"""Builds the snapshot of a run from its journal and curves, without a supervisor.

Separate from `engine.runs.record`, because it imports most of the core, and lists of runs should be fast.
"""

from pathlib import Path

import msgspec

from engine.core.errors import SupervisorError
from engine.core.metrics.health import RankHealth
from engine.core.metrics.progress import RankProgress
from engine.core.metrics.resources import GpuUse, ProcessUse
from engine.core.metrics.series import Point, SeriesDump, SeriesSet
from engine.core.metrics.stretches import Stretch
from engine.core.plan.plan import LaunchPlan, with_backend, with_nodes
from engine.core.run.events import AnyEvent, FallbackBackend, RunLaunched
from engine.core.run.machine import replay
from engine.core.run.state import Ended, RunState, ends_with_job, waits_for_job
from engine.core.views.story import tell_all
from engine.core.views.view import JobView, Snapshot, StallView
from engine.core.views.views import rank_views, run_view, told_ranks
from engine.linux.files import read_file
from engine.runs.foreign.traces import read_traces
from engine.runs.paths import RunPaths
from engine.runs.record import find_value, is_in_job, read_plan, read_submitted, read_tail

MAX_JOURNAL = 1 << 30  # bytes of the largest journal that is read

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class SavedSeries(msgspec.Struct, kw_only=True):
    """`series.json`: curves, newest numbers, and how far each file was read (`"3.err"`: rank 3, stderr; `files`: those of trackers, by path)."""

    attempt: int
    offsets: dict[str, int]
    files: dict[str, int] = {}
    progress: list[RankProgress]
    series: list[SeriesDump]
    stretches: list[Stretch] = []


class Numbers(msgspec.Struct, kw_only=True):
    """`numbers.json`: what a snapshot of an attempt shows besides its events, of a supervisor in a job, whom other hosts reach only by a step of it. `at`: when
    it was written; `words`: what the supervisor does besides; `newest`: each curve's last point."""

    at: float | None = None
    attempt: int
    progress: list[RankProgress]
    gpus: dict[int, GpuUse] = {}
    processes: dict[int, ProcessUse] = {}
    health: dict[int, RankHealth] = {}
    stall: StallView | None = None
    job: JobView | None = None
    words: str = ""
    newest: list[Point] = []
    stretches: list[Stretch] = []


def decode_event(line: bytes) -> AnyEvent:
    """One line of a journal. Raises ValueError: it is not an event."""
    return _decoder.decode(line)


def read_journal(path: Path) -> list[AnyEvent]:
    """The events of a journal; a torn or unreadable last line is left out. Raises SupervisorError: the file, or a line before the last, can't be read."""
    return measure_journal(path)[0]


def measure_journal(path: Path) -> tuple[list[AnyEvent], int]:
    """The events of a journal, and how many bytes of the file they take up. Raises as `read_journal`."""
    try:
        lines = read_file(path, MAX_JOURNAL).split(b"\n")
    except OSError as error:
        hint = "rankdeck clean removes the run"
        raise SupervisorError(f"{path} can't be read: {error.strerror}", hint=hint) from None
    events: list[AnyEvent] = []
    size = 0
    for number, line in enumerate(lines[:-1], 1):
        try:
            events.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(lines) - 1:
                break
            hint = "a newer rankdeck may have written it"
            raise SupervisorError(f"{path}:{number}: not an event: {error}", hint=hint) from None
        size += len(line) + 1
    return events, size


def read_saved(paths: RunPaths) -> SavedSeries | None:
    """The stored curves of a run; None if they can't be read."""
    return find_value(paths.series, SavedSeries)


def first_event(paths: RunPaths, plan: LaunchPlan, at: float) -> RunLaunched:
    """The first line of a run's journal. `at`: when it was launched."""
    return RunLaunched(
        at=at,
        run=paths.run,
        name=plan.name,
        nodes=tuple((node.name, node.ranks) for node in plan.nodes),
        on_failure=plan.launch.on_failure,
        max_restarts=plan.launch.max_restarts,
        restart_when=plan.launch.restart_when,
        start_together=plan.backend.start_together,
        python=plan.shown_python,
        backend=plan.backend.name,
        backend_note=plan.backend_note,
        backend_is_auto=plan.backend_is_auto,
        spare_nodes=plan.spare_nodes,
        spare_names=plan.spare_names,
        fallback=tuple(FallbackBackend(backend=one.name, start_together=one.start_together) for one in plan.fallback),
    )


def plan_now(launched: LaunchPlan, state: RunState) -> LaunchPlan:
    """The plan of the current attempt, which may have another backend, and nodes that spare ones have replaced. `launched`: the plan as it was
    launched, or as the job made it in which the run goes on."""
    plan = with_backend(launched, state.backend)
    # A run that waits may have the plan of its next job already.
    return plan if waits_for_job(state) else with_nodes(plan, [node.name for node in state.nodes])


def is_queued(paths: RunPaths) -> bool:
    """Whether a run waits for a job: it was submitted and no supervisor has begun to run it, or it has left a job for another one."""
    return paths.job.exists() and (not has_begun(paths) or waits_again(paths))


def has_begun(paths: RunPaths) -> bool:
    """Whether a supervisor has written its first event."""
    try:
        return paths.journal.stat().st_size > 0
    except OSError:
        return False


def waits_again(paths: RunPaths) -> bool:
    """Whether a run that has begun has left its job, and another one will continue it. Raises SupervisorError: its journal can't be read."""
    state = replay(read_journal(paths.journal))
    return state is not None and waits_for_job(state)


def leaves_job(paths: RunPaths) -> bool:
    """Whether a run is ending because Slurm ends its job. Raises SupervisorError: its journal can't be read."""
    state = replay(read_journal(paths.journal))
    return state is not None and ends_with_job(state)


def stored_snapshot(paths: RunPaths) -> Snapshot:
    """The snapshot of a run from its files, without a supervisor. Raises SupervisorError: the files can't be read."""
    submitted = read_submitted(paths)
    waits_first = submitted if not has_begun(paths) else None
    plan = read_plan(paths)
    events = read_journal(paths.journal) if waits_first is None else [first_event(paths, plan, waits_first.at)]
    state = replay(events)
    if state is None:
        raise SupervisorError(f"{paths.journal} is empty", hint="rankdeck clean removes the run")
    plan = plan_now(plan, state)
    saved = read_saved(paths) or SavedSeries(attempt=state.attempt, offsets={}, progress=[], series=[])
    numbers = None if isinstance(state.phase, Ended) else find_value(paths.numbers, Numbers)
    if numbers is None or (numbers.attempt, len(numbers.progress)) != (state.attempt, len(state.ranks)):
        numbers = Numbers(attempt=state.attempt, progress=saved.progress, stretches=saved.stretches)
    progress = numbers.progress if len(numbers.progress) == len(state.ranks) else [RankProgress() for _ in state.ranks]
    curves = SeriesSet(saved.series if numbers.newest else ())
    for point in numbers.newest:
        known = curves.get(point.rank, point.key)
        if known is None or not known.recent or known.recent[-1][0] < point.at:
            curves.append(point)
    tails = {rank: read_tail(paths.log(state.attempt, rank, "err")) for rank in told_ranks(state)}
    waits = read_traces(paths.attempt(state.attempt), len(state.ranks), state.generation_since).waits if tails else ()
    view = run_view(state, plan, progress, tails, waits, numbers.stall, numbers.stretches)
    doing = "; ".join(filter(None, (numbers.words, view.doing)))
    view = msgspec.structs.replace(view, doing=doing, job=numbers.job, as_of=numbers.at)
    if waits_first is not None:
        view = msgspec.structs.replace(view, state="queued", doing="", restart="", restart_kind="none")
    elif submitted is not None and submitted.by_user and not is_in_job(submitted):
        view = msgspec.structs.replace(view, restart="", restart_kind="none")
    use, every = (numbers.gpus, numbers.health, numbers.processes), range(len(progress))
    views = rank_views(state, plan, every, progress, *use, numbers.stretches)
    return Snapshot(
        run=view,
        ranks=tuple(views),
        series=tuple(curves.dump() if numbers.newest else saved.series),
        events=() if waits_first is not None else tuple(tell_all(events)),
    )
