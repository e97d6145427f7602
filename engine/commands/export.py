"""`rankdeck export`: curves and reports for other programs. Their libraries are imported only for their own format."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from engine.commands.output import narrate
from engine.commands.report import report_html
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.metrics.chart_svg import chart_svg
from engine.core.metrics.series import SeriesDump
from engine.core.plan.settings import settings_of, shown_setting
from engine.core.views.view import Snapshot
from engine.planning.profiles import read_profile
from engine.runs.origin import read_origin
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_tail
from engine.runs.replay import stored_snapshot

TAIL_LINES = 60
"""Lines of a failed rank's stderr in a report."""


class Value(NamedTuple):
    """A point of a curve. `value`: the newest of `merged` values; `low` and `high`: of all of them. None: not finite."""

    rank: int
    metric: str
    time: float
    step: int | None
    value: float | None
    low: float | None
    high: float | None
    merged: int


def values_of(series: tuple[SeriesDump, ...]) -> Iterator[Value]:
    """Every point that is kept of a run's curves: at most 256 for each metric of a rank; long runs have several values in a point."""
    for dump in series:
        for one in dump.buckets:
            yield Value(dump.rank, dump.key, one.end, one.step, one.last, one.low, one.high, one.count)


def export_run(paths: RunPaths, kind: str, output: str | None, metric: str) -> None:
    """Writes a run in another format, and says where.

    Args:
        paths: of the run.
        kind: see `FORMATS`.
        output: a file or folder, or `-`; None: `FORMATS` says which. For wandb and mlflow the name of the project or experiment.
        metric: for a chart.

    Raises:
        SupervisorError: the files of the run can't be read.
        UsageError: the output exists, or the run has no such metric.
        CheckError: a library is missing.
        RankdeckError: writing fails.
    """
    snapshot = stored_snapshot(paths)
    if kind in REMOTE:
        try:
            REMOTE[kind](paths, snapshot, output)
        except RankdeckError:
            raise
        except Exception as error:  # noqa: BLE001 - of code that is not ours
            said = str(error).strip().partition("\n")[0]
            raise RankdeckError(
                f"{kind} failed: {type(error).__name__}: {said}",
                hint=f"correct the settings of {kind}, which rankdeck does not change",
            ) from None
        return
    data = _content(paths, snapshot, kind, metric)
    name = output or ("-" if kind in ("csv", "jsonl") else f"{paths.run}.{kind}")
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    _refuse_existing(Path(name))
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise RankdeckError(f"{name} can't be written: {error.strerror}") from None
    narrate(f"written: {name}")


def _content(paths: RunPaths, snapshot: Snapshot, kind: str, metric: str) -> bytes:
    match kind:
        case "csv":
            text = io.StringIO()
            writer = csv.writer(text)
            writer.writerow(("run", *Value._fields))
            writer.writerows((paths.run, *value) for value in values_of(snapshot.series))
            return text.getvalue().encode()
        case "jsonl":
            lines = (json.dumps({"run": paths.run, **value._asdict()}) for value in values_of(snapshot.series))
            return "".join(f"{line}\n" for line in lines).encode()
        case "html":
            return _report(paths, snapshot).encode(errors="replace")
    svg = chart_svg(snapshot.series, metric, snapshot.run.launched_at)
    if svg is None:
        known = ", ".join(sorted({dump.key for dump in snapshot.series})) or "none"
        raise UsageError(f"{paths.run} has no values of {metric!r}", hint=f"--metric; its metrics: {known}")
    return (
        svg.encode() if kind == "svg" else bytes(_library("cairosvg", "png").svg2png(bytestring=svg.encode(), scale=2))
    )


def _report(paths: RunPaths, snapshot: Snapshot) -> str:
    failure, recorded = snapshot.run.failure, read_origin(paths)
    last = ""
    if failure is not None and failure.rank is not None:
        tail = read_tail(paths.log(snapshot.run.attempt, failure.rank, "err")).decode(errors="replace")
        last = "\n".join(tail.rstrip("\n").split("\n")[-TAIL_LINES:])
    origin = recorded.origin if recorded is not None else None
    return report_html(snapshot, read_plan(paths), origin, last, time.time())


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists", hint="remove it, or choose another file with --output")


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckError(
            f"{extra} needs the package {name.partition('.')[0]}: {error}", hint=f"pip install 'rankdeck[{extra}]'"
        ) from None


# --- through the libraries of others -------------------------------------------------------------------------------------


def _by_rank(snapshot: Snapshot) -> Iterator[tuple[str, Value, int]]:
    """`loss/rank_3`, the value and its step, in the order of steps, as these libraries want it; without what is not finite."""
    found = [value for value in values_of(snapshot.series) if value.value is not None]
    found.sort(key=lambda value: (value.step if value.step is not None else -1, value.time))
    for value in found:
        step = value.step if value.step is not None else round(value.time - snapshot.run.launched_at)
        yield f"{value.metric}/rank_{value.rank}", value, step


def _settings(paths: RunPaths) -> dict[str, str]:
    with contextlib.suppress(RankdeckError):
        return {key: shown_setting(key, value) for key, value in settings_of(read_profile(paths.profile)).items()}
    return {}


def _to_tensorboard(paths: RunPaths, snapshot: Snapshot, output: str | None) -> None:
    folder = Path(output or "tensorboard") / paths.run
    _refuse_existing(folder)
    writer = _library("tensorboard.summary", "tensorboard").Writer(str(folder))
    for name, value, step in _by_rank(snapshot):
        writer.add_scalar(name, value.value, step, wall_time=value.time)
    writer.close()
    narrate(f"written: {folder}; to look at it: tensorboard --logdir {folder.parent}")


def _to_wandb(paths: RunPaths, snapshot: Snapshot, output: str | None) -> None:
    run = _library("wandb", "wandb").init(project=output or "rankdeck", name=paths.run, config=_settings(paths))
    steps: dict[int, dict[str, Any]] = {}
    for name, value, step in _by_rank(snapshot):
        steps.setdefault(step, {})[name] = value.value
    for step in sorted(steps):
        run.log(steps[step], step=step)
    run.finish()


def _to_mlflow(paths: RunPaths, snapshot: Snapshot, output: str | None) -> None:
    client = _library("mlflow.tracking", "mlflow").MlflowClient()
    title = output or "rankdeck"
    experiment = client.get_experiment_by_name(title)
    number = experiment.experiment_id if experiment is not None else client.create_experiment(title)
    began = round(snapshot.run.launched_at * 1000)
    run = client.create_run(number, start_time=began, run_name=paths.run).info.run_id
    for key, text in _settings(paths).items():
        client.log_param(run, key.lstrip("-") or key, text[:500])
    for name, value, step in _by_rank(snapshot):
        client.log_metric(run, name, value.value, timestamp=round(value.time * 1000), step=step)
    client.set_terminated(run, "FINISHED" if snapshot.run.state == "succeeded" else "FAILED")
    narrate(f"written: run {run} of experiment {title}")


REMOTE: dict[str, Callable[[RunPaths, Snapshot, str | None], None]] = {
    "tensorboard": _to_tensorboard,
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
}

FORMATS = ("csv", "jsonl", "html", "svg", "png", *REMOTE)
"""csv and jsonl go to standard output unless a file is named; html, svg and png to a file with the run's name."""
