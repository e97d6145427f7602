"""Finds the newest checkpoint that the ranks of an attempt have written, and one that was being written when they ended.

Agents run this file: a question as JSON on standard input, the answer on standard output. It believes what is certain: an archive without an end, a file that is
shorter than its header says, a folder of `torch.distributed.checkpoint` without `.metadata`. Where a signal has killed ranks, a checkpoint that
was written last and lacks a file of the one before it, or a tenth of its size, counts as torn too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from typing import Any, Dict, Iterator

Message = Dict[str, Any]

FOLDER = re.compile(r"(?i)(?:step|iter(?:ation)?|checkpoint|ckpt|epoch)[-_=.]?\d+(?:\.\w{1,6})?$")
"""In the name of a folder that is one checkpoint."""

STEP = re.compile(r"(?i)(?<!hpc_)(?:step|iter(?:ation)?|checkpoint|ckpt|model)[-_=.]?(\d+)")
"""In the name of a checkpoint: its step. Lightning counts its `hpc_ckpt_1`, which it writes before a job is requeued."""

INCOMPLETE = "checkpoint-is-incomplete.txt"
"""The file that transformers' Trainer keeps in a checkpoint while it writes that at SIGTERM."""

LAST_TIME = 15.0
"""Seconds between the last change of a checkpoint that was being written and the end of the last rank, at most."""

LOGS = (".log", ".out", ".err", ".txt", ".json", ".jsonl", ".csv", ".metrics")  # ends of files that may become smaller

MOST_ENTRIES, DEPTH, MEASURED = 20_000, 4, 8
"""Entries of folders and depth of folders that are looked at, and the newest checkpoints that are read."""

FILE = re.compile(r"\.(?:pt|pth|ckpt|safetensors|nemo|distcp)(\.(?:new|tmp|part|partial|incomplete))?$")
"""In the name of a file that holds a checkpoint. The group: programs write it under this name, and rename it once it is whole."""

TORN = ".torn"

PASSED_OVER = ("site-packages", "node_modules", "__pycache__", "wandb", "mlruns")


def item_of(path: str) -> str:
    """The checkpoint that a file belongs to: a folder above it, or itself."""
    folder = os.path.dirname(path)
    if path.endswith(".distcp") or FOLDER.search(os.path.basename(folder)):
        return folder
    above = os.path.dirname(folder)
    return above if FOLDER.search(os.path.basename(above)) else path


class Found:
    """A checkpoint: a file, or a folder of files."""

    def __init__(self, path: str, status: os.stat_result, is_folder: bool) -> None:
        self.path, self.at, self.size, self.is_folder = path, status.st_mtime, status.st_size, is_folder
        self.files: dict[str, int] = {}
        """Bytes of its files by their paths below it, with `#` in place of numbers."""
        found = FILE.search(path)
        self.is_unfinished, self.is_aside = found is not None and found[1] is not None, path.endswith(TORN)
        self.lack = "it is not finished" if self.is_unfinished or self.is_aside else ""
        """Why it is not whole; empty: nothing is known to be missing."""

    def measure(self) -> None:
        """Adds up its files, and finds out what is certainly missing."""
        paths = [self.path]
        if self.is_folder:
            paths = [os.path.join(top, name) for top, _, names in os.walk(self.path) for name in names][:MOST_ENTRIES]
            self.size, self.at = 0, self.at if not paths else 0.0
        for path in paths:
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                self.at = max(self.at, status.st_mtime)
                self.size += status.st_size if self.is_folder else 0
                self.files[re.sub(r"\d+", "#", path[len(self.path) :])] = status.st_size
                self.lack = self.lack or lack_of(path, status.st_size)

    def compare(self, older: Found) -> None:
        """Notes what it lacks of one that is whole and of the same kind."""
        for name, size in older.files.items():
            if name not in self.files:
                self.lack = self.lack or f"it lacks {name.lstrip('/')}"
            elif not name.endswith(LOGS) and self.files[name] < size * 0.9:
                self.lack = self.lack or f"it is smaller than {os.path.basename(older.path)}"

    def told(self, folder: str) -> Message:
        """As a message. `folder`: the working directory; a path below it is shortened."""
        path = self.path[: -len(TORN)] if self.is_aside else self.path
        name = path[len(folder) + 1 :] if path.startswith(folder + "/") else path
        steps = STEP.findall(os.path.basename(self.path))
        return {"name": name, "step": int(steps[-1]) if steps else None, "at": self.at, "size": self.size}


def lack_of(path: str, size: int) -> str:
    """Why a file is certainly not whole; empty: nothing is known to be missing."""
    if os.path.basename(path) == INCOMPLETE:
        return f"it has {INCOMPLETE}"
    if size == 0:
        return "it is empty" if FILE.search(path) else ""
    if path.endswith(".distcp"):
        is_whole = os.path.exists(os.path.join(os.path.dirname(path), ".metadata"))
        return "" if is_whole else "it has no .metadata"
    with open(path, "rb") as file:
        head = file.read(8)
        if head[:4] == b"PK\3\4":
            file.seek(max(0, size - 65_557))  # the record at the end of a ZIP archive, and the longest comment after it
            return "" if b"PK\5\6" in file.read() else "its archive has no end"
        if path.endswith(".safetensors"):
            header = int.from_bytes(head, "little")
            text = file.read(header) if header < size else b""
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                ends = [one["data_offsets"][1] for name, one in json.loads(text).items() if name != "__metadata__"]
                return "" if 8 + header + max(ends, default=0) <= size else "it is shorter than its header says"
            return "it is shorter than its header says"
    return ""


def walk(folder: str, depth: int, budget: list[int]) -> Iterator[Found]:
    """The checkpoints in a folder. `budget`: how many entries may still be looked at."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            budget[0] -= 1
            if budget[0] < 0:
                return
            name = entry.name[: -len(TORN)] if entry.name.endswith(TORN) else entry.name
            if entry.name[0] == "." or name in PASSED_OVER or TORN in name:
                continue
            if entry.is_dir(follow_symlinks=False):
                if FOLDER.search(name) or os.path.exists(os.path.join(entry.path, ".metadata")):
                    yield Found(entry.path, entry.stat(), True)
                elif depth:
                    yield from walk(entry.path, depth - 1, budget)
            elif entry.is_file(follow_symlinks=False) and FILE.search(name):
                yield Found(entry.path, entry.stat(), False)


def find(*, places: Message, written: list[str], ended: float, killed: bool, set_aside: bool) -> Message:
    """The newest whole checkpoint, one that was being written, and the name under which that was set aside. `places` has the keys
    `folder` (working directory), `checkpoints` (the run's folder), `argv`, `begun` (of the attempt, seconds since the epoch) and `seen` (folders
    in which ranks wrote checkpoints). `written`: files that ranks had open. `ended`: when the last rank ended. `killed`: whether a signal ended one. `set_aside`: whether a torn one gets another name."""
    folder, budget = places["folder"], [MOST_ENTRIES]
    named = [os.path.join(folder, word.rpartition("=")[2]) for word in places["argv"]]
    own = [path for path in named if os.path.isdir(path) and not os.path.samefile(path, folder)]
    own += [places["checkpoints"], *places.get("seen", ())]
    written = [item_of(path) for path in written]
    tops = {os.path.dirname(path) for path in written} | {*own}
    found = {one.path: one for top in tops for one in walk(top, DEPTH, budget)}
    found = found or {one.path: one for one in walk(folder, DEPTH, budget)}
    newest = sorted(found.values(), key=lambda one: one.at, reverse=True)[:MEASURED]
    for one in newest:
        one.measure()
    newest.sort(key=lambda one: one.at, reverse=True)
    last = newest[0] if newest else None
    if last is not None and killed and not last.lack and abs(ended - last.at) < LAST_TIME:
        kind = re.sub(r"\d+", "#", last.path)
        older = next((one for one in newest[1:] if not one.lack and re.sub(r"\d+", "#", one.path) == kind), None)
        if older is not None:
            last.compare(older)
    answer: Message = {"newest": next((one.told(folder) for one in newest if not one.lack), None)}
    if last is not None and last.lack and last.at >= places["begun"]:
        answer.update(torn=last.told(folder), lack=last.lack)
        is_own = last.path in written or any(last.path.startswith(top + "/") for top in own)
        if last.is_aside:  # by a process that has died before it could tell
            answer["moved"] = os.path.basename(last.path)
        elif set_aside and is_own and not last.is_unfinished and not os.path.exists(last.path + TORN):
            os.rename(last.path, last.path + TORN)
            answer["moved"] = os.path.basename(last.path) + TORN
    return answer


if __name__ == "__main__":
    json.dump(find(**json.load(sys.stdin)), sys.stdout)
