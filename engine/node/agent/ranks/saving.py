"""Finds the program of a rank, and whether it saves a checkpoint after it was told to stop."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from time import monotonic

from engine.linux.processes import all_children, below, catches, kill_quietly
from engine.node.agent.files import file_size, read_from
from engine.node.agent.state import STACKS_SIGNAL, Rank

HANDLER_TIME = 30.0
"""Seconds for a program that handles SIGTERM to begin to save, and to end."""

GROWTH_TIME = 15.0
"""Seconds without growth after which a file is not being written any more."""

NEWEST = 8192
"""Bytes at the end of a rank's output that are searched for words about a checkpoint."""

CHECKPOINT = re.compile(
    r"(?i)ckpt|checkpoint|safetensors|distcp|(?:step|epoch|iter)[_-]?\d|\.(?:pt|pth|bin|npz|h5|pkl|tar|nemo|msgpack)\b"
)
"""In the path of a file that holds a checkpoint, or a part of one."""

LOGS = (".log", ".out", ".err", ".txt", ".json", ".jsonl", ".csv", ".metrics")
"""Ends of files that grow without a checkpoint."""

ABOUT_SAVING = re.compile(
    r"(?i)\b(?:(saving\b|(?:writing|dumping)\b[^\n]*\b(?:checkpoint|ckpt|model|states?)\b)|(?:saved|wrote|written|dumped)\b)"
)
"""In output: a save begins if the first group is there; else it is over."""


def request_stop(rank: Rank, children: dict[int, list[int]]) -> None:
    """Sends the signal that the rank's program understands: SIGTERM if it has a handler for it, else SIGINT.

    SIGTERM reaches the program alone: a wrapper without a handler would end first, and its rank with it; workers that load data would
    disturb the save. SIGINT also reaches the wrappers above the program, because a shell continues with its next command otherwise; the
    whole process group, if it is not known which process is the program. `children`: of every process.
    """
    members = [rank.pid, *below(rank.pid, children, set())]
    program = next((pid for number in (STACKS_SIGNAL, signal.SIGTERM) for pid in members if catches(pid, number)), None)
    if program is None:
        rank.signal(signal.SIGINT)
        return
    rank.handles_stop = catches(program, signal.SIGTERM)
    if rank.handles_stop:
        kill_quietly(program, signal.SIGTERM)
        return
    parents = {child: parent for parent, found in children.items() for child in found}
    while program in members:
        kill_quietly(program, signal.SIGINT)
        program = parents.get(program)


class Saving:
    """Follows the output and the files of ranks after they were told to stop."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._begin = monotonic()
        self._written = {(rank.number, stream): file_size(rank.files[stream]) for rank in ranks for stream in range(3)}
        self._sizes: dict[tuple[int, int], int] = {}
        """Of open files that look like parts of a checkpoint, by device and inode."""
        self._grew: dict[int, float] = {}
        """When such a file of a rank has grown last."""

    def goes_on(self, ranks: list[Rank]) -> list[Rank]:
        """The ranks that are saving, or handle SIGTERM and have had less than HANDLER_TIME."""
        children, now = all_children(), monotonic()
        for rank in ranks:
            if self._has_grown([rank.pid, *below(rank.pid, children, set())]):
                self._grew[rank.number] = now
        return [
            rank
            for rank in ranks
            if now - self._grew.get(rank.number, -GROWTH_TIME) < GROWTH_TIME
            or (rank.handles_stop and now - self._begin < HANDLER_TIME)
            or self._says_so(rank)
        ]

    def _has_grown(self, pids: list[int]) -> bool:
        has_grown = False
        for pid in pids:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    path = f"/proc/{pid}/fd/{name}"
                    with contextlib.suppress(OSError):
                        place = "/".join(os.readlink(path).split("/")[-2:])
                        is_checkpoint = CHECKPOINT.search(place) and not place.endswith(LOGS)
                        if is_checkpoint and os.lstat(path).st_mode & stat.S_IWUSR:  # data is open for reading only
                            status = os.stat(path)
                            key = (status.st_dev, status.st_ino)
                            has_grown = has_grown or status.st_size > self._sizes.get(key, 0)
                            self._sizes[key] = status.st_size
        return has_grown

    def _says_so(self, rank: Rank) -> bool:
        """Whether it is in the phase `save`, or its newest words about a checkpoint are that it saves one."""
        texts = []
        for stream, path in enumerate(rank.files):
            begin = max(self._written.get((rank.number, stream), 0), file_size(path) - NEWEST)
            texts.append(read_from(path, begin, NEWEST))
        if '"phase":"sav' in texts[2].rstrip("\n").rpartition("\n")[2]:
            return True
        words = [found for text in texts[:2] for found in list(ABOUT_SAVING.finditer(text))[-1:]]
        return any(found[1] for found in words)
