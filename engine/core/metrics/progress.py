"""Turns reports of ranks into the newest values and points of curves.

A rank reports metrics by `rankdeck.log` or in its output. Once a metric was logged, its values in the output are ignored: otherwise
every point would appear twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from engine.core.metrics.metric_lines import Reading
from engine.core.metrics.series import Point

THROUGHPUT_WINDOW = 0.25
"""Seconds of samples in one point of the throughput: a screen shows at most four points a second."""

_UNITS = {"it/s": "it", "samples/s": "samples", "tokens/s": "tok"}
"""Units of throughput, by the key of a reading."""

_MAX_KEYS = 64
"""Most curves of one rank; a script that generates names would otherwise fill the memory."""


class RankProgress(msgspec.Struct, kw_only=True):
    """The newest numbers of one rank. `throughput` is in `unit` per second; `seen` in seconds since the epoch."""

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    throughput: float | None = None
    unit: str = ""
    checkpoint: int | None = None
    checkpoint_at: float | None = None
    seen: float | None = None
    meeting: Literal["", "joining", "joined"] = ""
    """The rank's last report about its process group: it waits for the others, or all have joined."""
    last_line: str = ""
    out_size: int = 0
    err_size: int = 0
    counted: float = 0.0
    """Samples or tokens since `counted_since`."""
    counted_since: float | None = None
    recorded: set[str] = set()
    """Metrics reported by `rankdeck.log`."""
    keys: set[str] = set()


def take_record(rank: int, progress: RankProgress, record: Mapping[str, Any]) -> list[Point]:
    """Adds one line of a rank's metrics file.

    Args:
        rank: the rank that wrote it.
        progress: changed in place.
        record: `{"t": seconds since the epoch, "step": …, "loss": …, "samples": …, …}`; values of other types are skipped.

    Returns:
        New points of curves.
    """
    at = _number(record.get("t"))
    if at is None or not math.isfinite(at):
        return []
    progress.seen = at
    step = _whole(record.get("step"))
    if step is not None:
        progress.step = step
    if (steps := _whole(record.get("steps"))) is not None:
        progress.steps = steps
    if (checkpoint := _whole(record.get("checkpoint"))) is not None:
        progress.checkpoint, progress.checkpoint_at = checkpoint, at
    for word in ("joining", "joined"):
        if record.get(word) is True:
            progress.meeting = word
    points = []
    for key, raw in record.items():
        if key in ("t", "step", "steps", "checkpoint", "samples", "tokens"):
            continue
        value = _number(raw)
        if value is not None and _admit(progress, key):
            progress.recorded.add(key)
            if key == "loss":
                progress.loss = value
            points.append(_point(rank, key, at, step, value))
    count, unit = _number(record.get("tokens")), "tok"
    if count is None:
        count, unit = _number(record.get("samples")), "samples"
    if count is not None and math.isfinite(count):
        progress.recorded.add("throughput")
        points += _count(rank, progress, at, step, count, unit)
    return points


def take_readings(rank: int, progress: RankProgress, at: float, readings: Iterable[Reading]) -> list[Point]:
    """Adds readings from a rank's output. Returns new points of curves.

    Args:
        rank: the rank that printed them.
        progress: changed in place.
        at: when they were read, seconds since the epoch.
        readings: in the order in which they were printed.
    """
    points = []
    for reading in readings:
        key, step, value = reading.key, _whole(reading.step), reading.value
        if step is not None and "step" not in progress.recorded:
            progress.step = step
        if key == "step":
            continue
        if key == "steps":
            progress.steps = progress.steps if (steps := _whole(value)) is None else steps
            continue
        name = "throughput" if key in _UNITS else key
        if name in progress.recorded or not _admit(progress, name):
            continue
        if name == "throughput":
            progress.throughput, progress.unit = value, _UNITS.get(key, progress.unit)
        elif name == "loss":
            progress.loss = value
        points.append(_point(rank, name, at, step if step is not None else progress.step, value))
    return points


def _point(rank: int, key: str, at: float, step: int | None, value: float) -> Point:
    return Point(rank, key, at, step, value if math.isfinite(value) else None)


def _count(rank: int, progress: RankProgress, at: float, step: int | None, count: float, unit: str) -> list[Point]:
    """Adds samples to the current window; returns a point of throughput if the window is complete."""
    progress.unit = unit
    if progress.counted_since is None or at < progress.counted_since:
        progress.counted_since, progress.counted = at, 0.0
        return []
    progress.counted += count
    elapsed = at - progress.counted_since
    if elapsed < THROUGHPUT_WINDOW:
        return []
    progress.throughput = progress.counted / elapsed
    progress.counted_since, progress.counted = at, 0.0
    return [_point(rank, "throughput", at, step, progress.throughput)]


def _admit(progress: RankProgress, key: str) -> bool:
    if key not in progress.keys:
        if len(progress.keys) >= _MAX_KEYS or len(key) > 64 or not key.isprintable():
            return False
        progress.keys.add(key)
    return True


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return float(raw)
    except OverflowError:
        return math.inf if raw > 0 else -math.inf


def _whole(raw: object) -> int | None:
    value = _number(raw)
    return int(value) if value is not None and math.isfinite(value) and abs(value) < 2**53 else None
