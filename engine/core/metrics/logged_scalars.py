"""Takes scalars from the file of a rank's tracker, where the rank's output lacks them.

The output has priority: a metric that is printed is not taken from the file, and printed steps are the rank's steps. A program with rich
bars prints the last one only, at its end, and wandb prints the last value of each metric; so few values have no priority. If the file is
read first, the output gets priority as soon as it shows more than the last steps of the file.
"""

import math
from collections.abc import Iterable

from engine.core.metrics.counters import LAST_BARS
from engine.core.metrics.event_records import Scalar
from engine.core.metrics.line_formats import Line, whole
from engine.core.metrics.line_meaning import Format
from engine.core.metrics.metric_names import Names, meaning_of
from engine.core.metrics.progress import MAX_KEYS, InFile, RankProgress, take_lines
from engine.core.metrics.series import Point

_COUNTED = Format(kind="file", counter="file")
_UNCOUNTED = Format(kind="file")


def take_scalars(
    rank: int,
    progress: RankProgress,
    found: Iterable[Scalar],
    names: Names,
    now: float,
    most_keys: int = MAX_KEYS,
    *,
    is_echo: bool = False,
) -> list[Point]:
    """Adds scalars of a rank's files to its progress. Returns new points of curves.

    Args:
        progress: changed in place.
        now: seconds since the epoch; a program's time that can't be true is replaced by it.
        most_keys: curves of this rank, besides the main ones.
        is_echo: a program whose output says anything about a metric says all of it.
    """
    points: list[Point] = []
    for scalar in found:
        role, key, factor = meaning_of(scalar.tag, "", names)
        key = key if role in ("lr", "grad_norm", "rate") else role if role in ("loss", "val_loss") else scalar.tag
        if key.replace("/", "_") in progress.keys:  # `eval/accuracy` is printed as `eval_accuracy`
            key = key.replace("/", "_")
        if role in ("epoch", "epochs", "step", "steps") or names.ignores(scalar.tag):
            continue
        if not is_echo:
            printed = progress.counters.get(progress.owner)
            if printed is not None and progress.owner != _COUNTED.counter and printed.advances <= LAST_BARS:
                progress.owner, progress.steps = "", None
                progress.from_files |= progress.keys
        shown = "throughput" if role == "rate" else key
        is_told = shown in progress.keys and shown not in progress.from_files
        is_printed = is_told and (is_echo or shown not in progress.single)
        at = scalar.at if math.isfinite(scalar.at) and 0 < scalar.at <= now else now
        step = _step_of(progress, scalar, key)
        values = {} if is_printed else {key: scalar.value * factor}
        line = Line(_UNCOUNTED if step is None else _COUNTED, values, step=step)
        new = take_lines(rank, progress, at, [line], most_keys)
        progress.from_files.update(point.key for point in new)
        for told in {shown, shown.replace("/", "_")} if values else ():
            progress.in_files[told] = InFile(progress.step or 0)
        points += new
    return points


def _step_of(progress: RankProgress, scalar: Scalar, key: str) -> int | None:
    """The step of a scalar if it is one of training: others may be written with the number of an epoch."""
    if progress.owner not in ("", _COUNTED.counter):
        return None
    counter = progress.counters.get(_COUNTED.counter)
    goes_on = counter is None or scalar.step >= counter.count
    return whole(float(scalar.step)) if key == "loss" or goes_on else None
