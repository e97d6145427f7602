"""`rankdeck export`: curves and reports for other programs."""

import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from engine.client.run import LocalRun
from engine.commands.curves import CURVES, Curves, Value, library
from engine.commands.output import narrate, new_file
from engine.commands.report import report_html
from engine.core.errors import RankdeckError, SupervisorLostError, UsageError
from engine.core.metrics.chart_svg import chart_svg
from engine.core.metrics.series import SeriesDump
from engine.core.run.state import ENDED_WORDS, RunWord
from engine.core.views.view import Snapshot
from engine.runs.origins.origin import read_origin
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_tail
from engine.runs.replay import stored_snapshot

TAIL_LINES = 60  # lines of a failed rank's stderr in a report


def values_of(series: Iterable[SeriesDump]) -> list[Value]:
    """Every stored point of a run's curves, by step: at most 256 for each metric of a rank. In long runs, a point stands for several
    values."""
    found = [
        Value(dump.rank, dump.key, one.end, one.step, one.last, one.low, one.high, one.count)
        for dump in series
        for one in dump.buckets
    ]
    return sorted(found, key=lambda value: (value.step if value.step is not None else -1, value.time))


def export_run(
    paths: RunPaths, kind: str, output: str | None, metric: str, *, follow: bool = False, show_secrets: bool = False
) -> None:
    """Writes a run in another format, and says where. `kind`: a format. Without `output`, csv and jsonl go to standard output; html, svg and
    png to a file with the run's name. `output`: a file or folder, or `-`. For wandb and mlflow the name of the project or experiment.
    Raises SupervisorError: the files of the run can't be read; UsageError: the output exists, the run has no such metric, or the format
    can't follow; CheckError: a library is missing; RankdeckError: writing fails."""
    if kind in CURVES:
        snapshot = stored_snapshot(paths)
        try:
            curves = CURVES[kind](paths, snapshot.run.launched_at, output)
            asyncio.run(_Export(curves).run(paths, snapshot, follow=follow))
        except (RankdeckError, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - of code that is not ours
            said = str(error).strip().partition("\n")[0]
            hint = f"correct the settings of {kind}, which rankdeck does not change"
            raise RankdeckError(f"{kind} failed: {type(error).__name__}: {said}", hint=hint) from None
        return
    if follow:
        raise UsageError(f"--follow is for {', '.join(CURVES)}", hint="leave out --follow, or export again later")
    data = _content(paths, stored_snapshot(paths), kind, metric, show_secrets=show_secrets)
    name = output or f"{paths.run}.{kind}"
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        with new_file(Path(name)) as file:
            file.write(data)
    except OSError as error:
        raise RankdeckError(f"{name} can't be written: {error.strerror}") from None
    narrate(f"written: {name}")


class _Export:
    """Writes each point once, although a snapshot repeats those before it."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self._told: dict[tuple[int, str], float] = {}
        """The time of the newest point of each curve."""

    async def run(self, paths: RunPaths, snapshot: Snapshot, *, follow: bool) -> None:
        """Writes what there is, and, with `follow`, what comes until the run ends."""
        state: RunWord = snapshot.run.state
        try:
            self._add(values_of(snapshot.series))
            while follow and state not in ENDED_WORDS:
                state = await self._follow(LocalRun(paths), state)
        finally:
            succeeded = state == "succeeded" if state in ENDED_WORDS else None
            self._curves.close(succeeded=succeeded)

    async def _follow(self, run: LocalRun, state: RunWord) -> RunWord:
        """Until the run ends, or its supervisor is lost: the next call connects to the one that takes over."""
        try:
            async for message in run.subscribe():
                state = message.run.state if message.run is not None else state
                if isinstance(message, Snapshot):  # the first, or one of another supervisor, or of the end
                    values = values_of(message.series)
                    self._add([one for one in values if one.time > self._told.get((one.rank, one.metric), 0.0)])
                else:
                    new = message.points
                    self._add(Value(one.rank, one.key, one.at, one.step, *(one.value,) * 3, 1) for one in new)
        except SupervisorLostError:
            await asyncio.sleep(0.1)
        return state

    def _add(self, values: Iterable[Value]) -> None:
        for value in values:
            self._curves.add(value)
            curve = value.rank, value.metric
            self._told[curve] = max(value.time, self._told.get(curve, 0.0))
        self._curves.flush()


def _content(paths: RunPaths, snapshot: Snapshot, kind: str, metric: str, *, show_secrets: bool) -> bytes:
    if kind == "html":
        failure, recorded = snapshot.run.failure, read_origin(paths)
        last = ""
        if failure is not None and failure.rank is not None:
            tail = read_tail(paths.log(snapshot.run.attempt, failure.rank, "err")).decode(errors="replace")
            last = "\n".join(tail.rstrip("\n").split("\n")[-TAIL_LINES:])
        origin = recorded.origin if recorded is not None else None
        report = report_html(snapshot, read_plan(paths), origin, last, time.time(), show_secrets=show_secrets)
        return report.encode(errors="replace")
    svg = chart_svg(snapshot.series, metric, snapshot.run.launched_at)
    if svg is None:
        known = ", ".join(sorted({dump.key for dump in snapshot.series})) or "none"
        raise UsageError(f"{paths.run} has no values of {metric!r}", hint=f"--metric; its metrics: {known}")
    if kind == "svg":
        return svg.encode()
    return bytes(library("cairosvg", "png").svg2png(bytestring=svg.encode(), scale=2))
