"""Finds and reads the files to which trackers in ranks write their numbers.

TensorBoard's event files tell by their names when they were created, and by which process. The file of a run of Weights & Biases has a log
beside it whose first line tells the process. Files that transformers' Trainer keeps with its checkpoints come from rank 0.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from engine.core.metrics import wandb_records
from engine.core.metrics.event_records import MAX_RECORD, Scalar, complete_size, scalars
from engine.linux.files import read_part
from engine.runs.foreign import trainer_states

Tracker = Literal["tensorboard", "wandb", "trainer"]  # the tracker that has written a file
SLICE = 1 << 17  # bytes that are read from one file at once: about 20 milliseconds of work
MAX_DEPTH = 6  # folders between working directory and file: `lightning_logs/version_0`, `runs/Nov25_node1/loss_train`
MAX_ENTRIES = 20_000  # entries of folders that one search looks at: the working directory may hold a data set
CLOCK = 60.0  # seconds by which a node's clock may be behind the supervisor's clock

_NAME = re.compile(r"(?:.*\.)?tfevents\.(\d{1,12})\.(?:.*?\.(\d{1,10})\.\d+(?:\.v2)?|[^/]*)\Z", re.DOTALL)
"""`events.out.tfevents.1764062046.node1.4711.0`: the time, the host, the process. Some writers leave the process out."""

_WANDB = ".wandb"
_WANDB_LOG = Path("logs/debug.log")
_PROCESS = re.compile(rb"[^\n\[]{0,80}\w+:(\d{1,10}) \[")
"""`2026-11-25 18:51:06,839 INFO    MainThread:4711 [wandb_setup.py…`"""


def find_files(
    folder: Path, ranks: Mapping[int, int], since: float, seconds: float, args: Sequence[str] = ()
) -> dict[Path, int]:
    """Looks for files of trackers that ranks have created. Hidden folders and links are left out. `ranks`: by pid. `since`: when the run was
    launched, seconds since the epoch. `seconds`: longest time that the search takes. Returns the rank of each file. An event file that
    does not name its process is one of rank 0."""
    found: dict[Path, int] = {}
    states: set[Path] = set()
    for entry in _entries(folder, seconds):
        try:
            if "tfevents" in entry.name and (named := _NAME.match(entry.name)):
                rank = ranks.get(int(named[2])) if named[2] else 0
                if rank is not None and int(named[1]) >= since - CLOCK:
                    found[Path(entry.path)] = rank
            elif entry.name.endswith(_WANDB) and entry.stat(follow_symlinks=False).st_mtime >= since - CLOCK:
                if (rank := ranks.get(_writer(Path(entry.path).parent / _WANDB_LOG))) is not None:
                    found[Path(entry.path)] = rank
            elif entry.name == trainer_states.NAME and entry.stat(follow_symlinks=False).st_mtime >= since:
                states.add(trainer_states.watched(Path(entry.path)))
        except OSError:
            continue
    if (state := trainer_states.of_program(states, folder, args)) is not None:
        found[state] = 0
    return found


def _entries(folder: Path, seconds: float) -> Iterator[os.DirEntry[str]]:
    """The files below a folder, nearest first, within limits of depth, number and time."""
    waiting = deque([(folder, 0)])
    until, entries = time.monotonic() + seconds, 0
    while waiting:
        here, depth = waiting.popleft()
        try:
            with os.scandir(here) as listed:
                for entry in listed:
                    entries += 1
                    if entries > MAX_ENTRIES or time.monotonic() > until:
                        return
                    yield entry
                    if depth < MAX_DEPTH and entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                        waiting.append((Path(entry.path), depth + 1))
        except OSError:
            continue


def tracker_of(path: Path) -> Tracker:
    """The tracker that has written a file."""
    if path.name == trainer_states.NAME:
        return "trainer"
    return "wandb" if path.name.endswith(_WANDB) else "tensorboard"


def _writer(log: Path) -> int:
    """The process that writes a log of wandb; 0: unknown."""
    try:
        named = _PROCESS.match(read_part(log, 256))
    except OSError:
        return 0
    return int(named[1]) if named else 0


def read_new(path: Path, offset: int) -> tuple[list[Scalar], int]:
    """Reads whole records of a file. `offset`: Offset of the first record to read; of a Trainer, the step after which to read. Returns
    their scalars, and the offset of the next record. Raises OSError: it can't be read; ValueError: it is no file of a tracker."""
    if tracker_of(path) == "trainer":
        return trainer_states.read_states(path, offset)
    data = read_part(path, SLICE, offset)
    if tracker_of(path) == "wandb":
        records = wandb_records.whole_records(data, offset)
        is_long = records.end == offset and len(data) == SLICE
        return list(wandb_records.scalars(records.messages)), records.reach if is_long else records.end
    whole, needed = complete_size(data)
    if not whole and SLICE < needed <= MAX_RECORD and path.stat().st_size >= offset + needed:
        return [], offset + needed  # no scalar is that large
    return list(scalars(data[:whole])), offset + whole
