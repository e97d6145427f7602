"""Reads what transformers' Trainer keeps of a training: `log_history` in the `trainer_state.json` of each checkpoint.

The newest checkpoint, `OUTPUT_DIR/checkpoint-STEP`, tells everything up to its step. `OUTPUT_DIR/trainer_state.json` is that of a training that
is over, if the script calls `save_state`. The folder is watched by the name of the latter, which may never exist.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from engine.core.metrics.event_records import MAX_TAG, Scalar
from engine.runs.record import open_regular

NAME = "trainer_state.json"

MAX_SIZE = 1 << 23
"""Bytes of the largest file that is read: some 30,000 logs."""

_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\Z")
_NO_METRICS = re.compile(r"epoch\Z|step\Z|total_flos\Z|.*(?:_runtime|_per_second)\Z")


def watched(path: Path) -> Path:
    """The name by which the folder of a state is watched.

    Args:
        path: of a file called `NAME`.
    """
    return (path.parent.parent if _CHECKPOINT.match(path.parent.name) else path.parent) / NAME


def read_states(path: Path, after: int) -> tuple[list[Scalar], int]:
    """Reads what was logged since a step.

    Args:
        path: the name by which the folder is watched.
        after: the step.

    Returns:
        Scalars, and the step up to which the newest state tells. Their times lie between those of the two checkpoints.

    Raises:
        OSError: the folder or a state can't be read.
        ValueError: a state is too large.
    """
    try:
        return _read_states(path, after)
    except FileNotFoundError:  # a checkpoint is not whole yet, was removed meanwhile, or the training is not over
        return [], after


def _read_states(path: Path, after: int) -> tuple[list[Scalar], int]:
    found = [
        (entry.stat(follow_symlinks=False).st_mtime, int(named[1]))
        for entry in os.scandir(path.parent)
        if (named := _CHECKPOINT.match(entry.name))
    ]
    saved, newest = max(found, default=(0.0, 0))
    state = path.parent / f"checkpoint-{newest}" / NAME if newest > after else path
    end = state.stat()
    if state == path and end.st_mtime < saved:
        return [], after  # it is of an earlier training
    step, logs = _read(state, end.st_mtime_ns)
    try:
        begin = min(end.st_mtime, (path.parent / f"checkpoint-{after}" / NAME).stat().st_mtime)
    except FileNotFoundError:
        begin = end.st_mtime
    pace = (end.st_mtime - begin) / max(1, step - after)
    return [Scalar(begin + pace * (at - after), at, tag, value) for at, tag, value in logs if after < at <= step], max(
        step, after
    )


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> tuple[int, tuple[tuple[int, str, float], ...]]:
    """The step of a state, and its logs: step, name and value. A file that is not whole yet has none. `changed`: what is kept is of that time."""
    descriptor = open_regular(path)
    try:
        data = os.pread(descriptor, MAX_SIZE + 1, 0)
    finally:
        os.close(descriptor)
    if len(data) > MAX_SIZE:
        raise ValueError(f"more than {MAX_SIZE} bytes")
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return 0, ()
    if not isinstance(state, dict) or not isinstance(logs := state.get("log_history"), list):
        return 0, ()
    step = _whole(state.get("global_step"))
    return step, tuple(one for log in logs if isinstance(log, dict) for one in _logged(log))


def _logged(log: Mapping[str, object]) -> Iterator[tuple[int, str, float]]:
    """The numbers of one log, but for those of the summary at the end."""
    if "train_runtime" in log:
        return
    for tag, value in log.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and len(tag.encode(errors="replace")) <= MAX_TAG and not _NO_METRICS.match(tag):
            yield _whole(log.get("step")), tag, _float(value)


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0
