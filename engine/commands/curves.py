"""Where `rankdeck export` writes the points of curves. The libraries of others are imported only for their own format."""

import contextlib
import csv
import importlib
import json
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from engine.commands.output import narrate, new_file
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.plan.secrets import shown_value
from engine.core.plan.settings import settings_of
from engine.planning.profiles import read_launched
from engine.runs.paths import RunPaths


class Value(NamedTuple):
    """A point of a curve. `value`: the newest of `merged` values; `low` and `high`: their extremes. None: not finite."""

    rank: int
    metric: str
    time: float
    step: int | None
    value: float | None
    low: float | None
    high: float | None
    merged: int


class Curves(Protocol):
    """Takes the points of a run, those of a curve in order.

    `flush` is called after some of them; `close` once. `succeeded`: whether the run did; None: it has not ended.
    """

    def add(self, value: Value) -> None: ...
    def flush(self) -> None: ...
    def close(self, *, succeeded: bool | None) -> None: ...


class _Lines:
    """Lines of text in a new file, or on standard output."""

    def __init__(self, output: str | None) -> None:
        self._name = output or "-"
        is_stdout = self._name == "-"
        self.file: IO[str] = sys.stdout if is_stdout else TextIOWrapper(new_file(Path(self._name)), newline="")

    def flush(self) -> None:
        self.file.flush()

    def close(self, *, succeeded: bool | None) -> None:
        self.file.flush()
        if self._name != "-":
            self.file.close()
            narrate(f"written: {self._name}")


class _Csv(_Lines):
    def __init__(self, paths: RunPaths, launched_at: float, output: str | None) -> None:
        super().__init__(output)
        self._run, self._writer = paths.run, csv.writer(self.file)
        self._writer.writerow(("run", *Value._fields))

    def add(self, value: Value) -> None:
        # A text that a spreadsheet would compute as a formula gets an apostrophe, which makes it a text there. Numbers stay numbers.
        fields = (self._run, *value)
        risky = tuple("=+-@\t\r")
        self._writer.writerow([f"'{one}" if isinstance(one, str) and one.startswith(risky) else one for one in fields])


class _JsonLines(_Lines):
    def __init__(self, paths: RunPaths, launched_at: float, output: str | None) -> None:
        super().__init__(output)
        self._run = paths.run

    def add(self, value: Value) -> None:
        self.file.write(json.dumps({"run": self._run, **value._asdict()}) + "\n")


class _Named:
    """For libraries that want a name and a step for each value: `loss/rank_3`. Leaves out values that are not finite."""

    def __init__(self, launched_at: float) -> None:
        self._launched_at = launched_at

    def add(self, value: Value) -> None:
        if value.value is not None:
            step = value.step if value.step is not None else round(value.time - self._launched_at)
            self.put(f"{value.metric}/rank_{value.rank}", value.value, step, value.time)

    def put(self, name: str, value: float, step: int, at: float) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """These libraries flush by themselves."""


class _TensorBoard(_Named):
    def __init__(self, paths: RunPaths, launched_at: float, output: str | None) -> None:
        super().__init__(launched_at)
        self._folder = Path(output or "tensorboard") / paths.run
        if self._folder.exists():
            raise UsageError(f"{self._folder} exists", hint="remove it, or choose another folder with --output")
        self._writer = library("tensorboard.summary", "tensorboard").Writer(str(self._folder))

    def put(self, name: str, value: float, step: int, at: float) -> None:
        self._writer.add_scalar(name, value, step, wall_time=at)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, succeeded: bool | None) -> None:
        self._writer.close()
        narrate(f"written: {self._folder}; to look at it: tensorboard --logdir {self._folder.parent}")


class _Wandb(_Named):
    """A run of wandb. Its own step may only grow, but ranks are at different steps. So our step is a metric, and wandb draws the others over it."""

    def __init__(self, paths: RunPaths, launched_at: float, output: str | None) -> None:
        super().__init__(launched_at)
        wandb = library("wandb", "wandb")
        self._run = wandb.init(project=output or "rankdeck", name=paths.run, config=_settings(paths))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def put(self, name: str, value: float, step: int, at: float) -> None:
        self._run.log({name: value, "step": step})

    def close(self, *, succeeded: bool | None) -> None:
        self._run.finish(exit_code=1 if succeeded is False else 0)


class _Mlflow(_Named):
    def __init__(self, paths: RunPaths, launched_at: float, output: str | None) -> None:
        super().__init__(launched_at)
        self._client = library("mlflow.tracking", "mlflow").MlflowClient()
        self._title = output or "rankdeck"
        experiment = self._client.get_experiment_by_name(self._title)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(self._title)
        began = round(launched_at * 1000)
        self._run = self._client.create_run(number, start_time=began, run_name=paths.run).info.run_id
        for key, text in _settings(paths).items():
            self._client.log_param(self._run, key.lstrip("-") or key, text[:500])

    def put(self, name: str, value: float, step: int, at: float) -> None:
        self._client.log_metric(self._run, name, value, timestamp=round(at * 1000), step=step)

    def close(self, *, succeeded: bool | None) -> None:
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")
        narrate(f"written: run {self._run} of experiment {self._title}")


CURVES: dict[str, Callable[[RunPaths, float, str | None], Curves]] = {
    "csv": _Csv,
    "jsonl": _JsonLines,
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
}
"""Called with the paths of a run, when it was launched, and the output: a file or `-`, a folder, or the name of a project or experiment."""


def library(name: str, extra: str) -> Any:
    """A module of an optional package. Raises CheckError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"pip install 'rankdeck[{extra}]'"
        raise CheckError(f"{extra} needs the package {name.partition('.')[0]}: {error}", hint=hint) from None


def _settings(paths: RunPaths) -> dict[str, str]:
    with contextlib.suppress(RankdeckError):
        return {key: shown_value(key, value) for key, value in settings_of(read_launched(paths.profile)).items()}
    return {}
