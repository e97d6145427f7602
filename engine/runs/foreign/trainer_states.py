"""Reads what transformers' Trainer keeps of a training: `log_history` in the `trainer_state.json` of each checkpoint.

The newest checkpoint, `OUTPUT_DIR/checkpoint-STEP`, tells everything up to its step. `OUTPUT_DIR/trainer_state.json` is written at the end
of a training, if the script calls `save_state`. The folder is watched by the name of the latter, which may never exist.
"""

import json
import math
import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from engine.core.metrics.event_records import MAX_TAG, Scalar
from engine.linux.files import read_part

NAME = "trainer_state.json"

MAX_SIZE = 1 << 23  # bytes of the largest file that is read: some 30,000 logs

_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})\Z")
_NO_METRICS = re.compile(r"epoch\Z|step\Z|total_flos\Z|.*(?:_runtime|_per_second)\Z")


def watched(path: Path) -> Path:
    """The name by which the folder of a state is watched."""
    return (path.parent.parent if _CHECKPOINT.match(path.parent.name) else path.parent) / NAME


def of_program(states: Collection[Path], folder: Path, args: Sequence[str]) -> Path | None:
    """The state that a program writes. Another training in the same folder writes states too, and no state names its writer. `states`: those
    that have changed since the program began. `args`: its arguments. States in a folder that an argument names, as `--output_dir out`
    does, are this program's. With an `output_dir`, no others are. Returns the state; None if several may be the program's."""
    words = {part for word in args for part in (word, word.partition("=")[2]) if part}
    named = {Path(os.path.normpath(folder / word)) for word in words} - {folder, *folder.parents}
    own = [state for state in states if not named.isdisjoint(state.parents)]
    # transformers' output folder is `--output_dir out`, `--output-dir=out` or `train.output_dir=out`.
    names = [word.partition("=")[0].lstrip("-").rpartition(".")[2].replace("-", "_") for word in args]
    if not own and "output_dir" not in names:
        own = list(states)
    return own[0] if len(own) == 1 else None


def read_states(path: Path, after: int) -> tuple[list[Scalar], int]:
    """Reads the values logged since a step. `path`: the name by which the folder is watched. `after`: the step. Returns scalars, and the
    step up to which the newest state tells. Their times lie between the times of the checkpoints around them. Raises OSError: the folder
    or a state can't be read; ValueError: a state is too large."""
    try:
        return _read_states(path, after)
    except FileNotFoundError:  # a checkpoint is not whole yet, was removed meanwhile, or the training is not over
        return [], after


def _read_states(path: Path, after: int) -> tuple[list[Scalar], int]:
    saves = [
        (int(named[1]), entry.stat(follow_symlinks=False).st_mtime)
        for entry in os.scandir(path.parent)
        if (named := _CHECKPOINT.match(entry.name))
    ]
    newest, saved = max(saves, key=lambda save: save[1], default=(0, 0.0))
    state = path.parent / f"checkpoint-{newest}" / NAME if newest > after else path
    changed = state.stat()
    if state == path and changed.st_mtime < saved:
        return [], after  # it is of an earlier training
    step, logs = _read(state, changed.st_mtime_ns)
    known = [*sorted(save for save in saves if save[0] < step and save[1] < changed.st_mtime), (step, changed.st_mtime)]
    found = [Scalar(_time_of(at, known), at, tag, value) for at, tag, value in logs if after < at <= step]
    return found, max(step, after)


def _time_of(step: int, known: Sequence[tuple[int, float]]) -> float:
    """When a step was done, by the steps and times of checkpoints around it, the last of which is not before it."""
    place = bisect_left(known, (step, 0.0))
    (before, begin), (after, end) = known[max(0, place - 1)], known[place]
    return begin + (end - begin) * (step - before) / max(1, after - before) if place else end


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> tuple[int, tuple[tuple[int, str, float], ...]]:
    """The step of a state, and its logs: step, name and value. A file that is still being written has none. `changed`: what is kept is of
    that time."""
    data = read_part(path, MAX_SIZE + 1)
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
    """The numbers of one log, without the summary at the end."""
    if "train_runtime" in log:
        return
    for tag, value in log.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and len(tag.encode(errors="replace")) <= MAX_TAG and not _NO_METRICS.match(tag):
            try:
                yield _whole(log.get("step")), tag, float(value)  # type: ignore[arg-type]
            except OverflowError:
                yield _whole(log.get("step")), tag, math.inf


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0
