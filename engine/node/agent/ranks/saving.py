"""Finds the program of a rank, and whether it saves a checkpoint after it was told to stop."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
from collections.abc import Callable, Iterable
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


def request_stop(rank: Rank, children: dict[int, list[int]], *, was_told: bool) -> None:
    """Sends the signal that the rank's program understands: SIGTERM if it has a handler for it, else SIGINT.

    SIGTERM reaches the program alone: a wrapper without a handler would end first, and its rank with it; workers that load data would
    disturb the save. SIGINT also reaches the wrappers above the program, because a shell continues with its next command otherwise; the
    whole process group, if it is not known which process is the program. `children`: of every process. `was_told`: it has got SIGTERM,
    and only whether it handles that is noted.
    """
    members = [rank.pid, *below(rank.pid, children, set())]
    program = next((pid for number in (STACKS_SIGNAL, signal.SIGTERM) for pid in members if catches(pid, number)), 0)
    rank.handles_stop = catches(program, signal.SIGTERM)
    if was_told:
        return
    if rank.handles_stop:
        kill_quietly(program, signal.SIGTERM)
        return
    if not program:
        rank.signal(signal.SIGINT)
    parents = {child: parent for parent, found in children.items() for child in found}
    while program in members:
        kill_quietly(program, signal.SIGINT)
        program = parents.get(program, 0)


def open_checkpoints(pids: list[int]) -> dict[str, int]:
    """Returns the sizes of the files that processes have open for writing and that look like parts of a checkpoint, by their paths."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                link = f"/proc/{pid}/fd/{name}"
                with contextlib.suppress(OSError):
                    path = os.readlink(link)
                    place = "/".join(path.split("/")[-2:])
                    is_checkpoint = CHECKPOINT.search(place) and not place.endswith(LOGS)
                    if is_checkpoint and os.lstat(link).st_mode & stat.S_IWUSR:  # data is open for reading only
                        found[path] = os.stat(link).st_size
    return found


class Saving:
    """Follows the output and the files of ranks after they were told to stop. `note`: called with files of checkpoints that they write."""

    def __init__(self, ranks: list[Rank], note: Callable[[Iterable[str]], None]) -> None:
        self._begin, self._note = monotonic(), note
        self.item, self.size = "", 0
        """The path of the file that is being written, and the bytes of all so far; empty: none is known."""
        self._written = {(rank.number, stream): file_size(rank.files[stream]) for rank in ranks for stream in range(3)}
        self._sizes: dict[str, int] = {}
        """Sizes of open files that look like parts of a checkpoint, by path."""
        self._grew: dict[int, float] = {}
        """When such a file of a rank last grew."""

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
        found = open_checkpoints(pids)
        self._note(found)
        grown = [path for path, size in found.items() if size > self._sizes.get(path, 0)]
        self._sizes.update(found)
        if grown:
            self.item = grown[-1]
            self.size = sum(self._sizes.values())
        return bool(grown)

    def _says_so(self, rank: Rank) -> bool:
        """Whether it is in the phase `save`, or its newest line about a checkpoint says that it saves one."""
        texts = []
        for stream, path in enumerate(rank.files):
            begin = max(self._written.get((rank.number, stream), 0), file_size(path) - NEWEST)
            texts.append(read_from(path, begin, NEWEST))
        if '"phase":"sav' in texts[2].rstrip("\n").rpartition("\n")[2]:
            return True
        words = [found for text in texts[:2] for found in list(ABOUT_SAVING.finditer(text))[-1:]]
        return any(found[1] for found in words)
