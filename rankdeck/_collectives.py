"""Answers for `rankdeck stacks`: a thread writes the state of this rank's collectives, and the lock file that it waits for, to a file when the agent asks for it. The thread
waits in a named pipe; the answer is one JSON line at the end of a file. Ranks that hang answer too, because torch releases the GIL while
it waits for other ranks. The layout is that of torch's flight recorder, with only the newest entries of each group."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankdeck._torch_compat import find_groups, recorders

if TYPE_CHECKING:
    from rankdeck.c10d._operations import Operations

KEPT = 8
"""Most collectives, and most transfers, of one group and backend in an answer: the newest ones, and the oldest pending one."""

MAX_TENSORS = 16  # most tensors of an operation whose sizes an answer has
MAX_LINE = 1 << 14  # Bytes of an answer. Groups that do not fit are left out, first those with nothing pending.

_FIELDS = (
    "process_group", "pg_id", "collective_seq_id", "profiling_name", "is_p2p", "retired", "state", "time_created_ns",
)  # fmt: skip

_BATON = "/torch/utils/file_baton.py"
"""Waits until the lock of a torch extension is gone. Its file stays open as long as a process holds it."""

_FILELOCK = "/filelock/"

_joined_at = 0
"""When this process made its process group, in nanoseconds. Older entries belong to a group that is gone."""

Entry = dict[str, Any]


def listen() -> None:
    """Starts to answer, from the first process group on. Never raises."""
    global _joined_at
    path, pid = os.environ.get("RANKDECK_STACKS"), os.getpid()
    if not path or os.getsid(0) != pid or os.environ.setdefault("RANKDECK_PID", str(pid)) != str(pid):
        return  # a child process of a rank
    is_first, _joined_at = not _joined_at, time.time_ns()
    if not is_first:
        return
    stem = path[: -len("stacks")]
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(stem + "asked", 0o600)
        asked = os.open(
            stem + "asked", os.O_RDWR | os.O_CLOEXEC
        )  # opened for reading and writing, so that the pipe does not end with its writer
        answers = os.open(stem + "collectives", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        threading.Thread(target=_answer, args=(asked, answers), name="rankdeck collectives", daemon=True).start()
    except (OSError, RuntimeError):
        return  # training does not depend on this


def _answer(asked: int, answers: int) -> None:
    """Answers until a script closes these descriptors, whose numbers may then be other files."""
    own = _files(asked, answers)
    with contextlib.suppress(OSError):
        while os.read(asked, 4096) and _files(asked, answers) == own:
            try:
                line = _line()
            except Exception:  # noqa: BLE001 - torch's internals change; an empty line means "no answer"
                line = ""
            with contextlib.suppress(OSError):
                os.write(answers, line.encode() + b"\n")


def _files(*descriptors: int) -> list[tuple[int, int]]:
    """Returns device and inode of each descriptor's file."""
    return [(status.st_dev, status.st_ino) for status in map(os.fstat, descriptors)]


def _line() -> str:
    """Returns the state of all groups. Imports nothing, because the main thread may hang in an import."""
    entries, is_evicted = _recorded()
    ranks = {}
    for group, name, members in find_groups():
        ranks[name] = members
        if operations := getattr(group, "_operations", None):  # a group of rankdeck.c10d, which torch does not record
            entries += _of_operations(operations, name, group.group_desc)
    spans: dict[str, list[list[int]]] = {}
    told: list[Entry] = []
    size = 0
    for of_group in _by_group(entries):
        name = of_group[0]["process_group"][0]
        own = {name: _spans(ranks[name])} if name in ranks else {}
        length = len(json.dumps(own)) + len(json.dumps(of_group))
        if size + length > MAX_LINE - 1000:  # the rest of the line
            is_evicted = True
            continue
        size += length
        spans.update(own)
        told += of_group
    lock = None
    with contextlib.suppress(Exception):  # another program may release or remove it now
        lock = awaited_lock()
    return json.dumps({"now": time.time_ns(), "evicted": is_evicted, "groups": spans, "entries": told, "lock": lock})


def _recorded() -> tuple[list[Entry], bool]:
    """Returns what torch has recorded, and whether old entries are gone."""
    entries: list[Entry] = []
    is_evicted = False
    for dump in recorders():
        found = json.loads(dump()).get("entries") or []
        is_evicted = is_evicted or bool(found and found[0]["record_id"])
        entries += found
    return [entry for entry in entries if entry["time_created_ns"] >= _joined_at], is_evicted


def _of_operations(operations: Operations, name: str, description: str) -> Iterator[Entry]:
    """Returns entries of a group of rankdeck.c10d: the number of the last completed collective, and pending operations."""
    begun, works = operations.begun, operations.under_way()
    now, clock = time.time_ns(), time.monotonic()
    number = begun - sum(not one.is_transfer for one in works)
    common = {"process_group": [name, description], "pg_id": 0}
    if number:
        yield {**common, "collective_seq_id": number, "profiling_name": "", "retired": True, "time_created_ns": 0}
    for one in works:
        number += not one.is_transfer
        created = now - int((clock - one.deadline + one.seconds) * 1e9)
        yield {
            **common,
            "collective_seq_id": number,
            "profiling_name": one.what,
            "is_p2p": one.is_transfer,
            "time_created_ns": created,
        }


def _by_group(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Returns the newest entries and the oldest pending one of each group, groups with pending ones first. Collectives and transfers of a
    group, and its backends, are counted separately."""
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        backend = entry["profiling_name"].partition("(")[0].rpartition(":")[0]
        key = *entry["process_group"], entry.get("pg_id"), backend, entry.get("is_p2p", False)
        groups.setdefault(key, []).append(entry)
    told = []
    for of_group in groups.values():
        oldest = next((place for place, entry in enumerate(of_group) if _is_under_way(entry)), len(of_group))
        newest = max(0, len(of_group) - KEPT)
        kept = [*of_group[oldest : oldest + 1], *of_group[newest:]] if oldest < newest else of_group[newest:]
        told.append((oldest == len(of_group), [_shortened(entry) for entry in kept]))
    return [of_group for _, of_group in sorted(told, key=lambda one: one[0])]


def _is_under_way(entry: Entry) -> bool:
    return (
        not entry.get("retired") and entry.get("state") != "completed"
    )  # nccl's watchdog sets `retired` a little later


def _shortened(entry: Entry) -> Entry:
    fields = {name: entry[name] for name in _FIELDS if name in entry}
    return {**fields, **{name: entry.get(name, [])[:MAX_TENSORS] for name in ("input_sizes", "input_dtypes")}}


def _spans(ranks: Sequence[int]) -> list[list[int]]:
    """Returns ranks as arguments of `range`: one range if the ranks are evenly spaced, as in most groups."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
        return [[ranks[0], ranks[-1] + 1, step]]
    return [[rank, rank + 1, 1] for rank in ranks]


def awaited_lock() -> tuple[str, float, int] | None:
    """The path of a lock file, its age in seconds, and the pid of the process that holds it; 0: none of this user does. None: the main thread
    waits for no lock of torch or filelock. Raises OSError: the file is gone."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file, owner = frame.f_code.co_filename, frame.f_locals.get("self")
        is_baton = file.endswith(_BATON)
        if is_baton or _FILELOCK in file:
            path = getattr(owner, "lock_file_path" if is_baton else "lock_file", None)
            if isinstance(path, str):
                status = os.stat(path)
                holder = _opener(status) if is_baton else _locker(status)
                return os.path.abspath(path), time.time() - status.st_mtime, holder
        frame = frame.f_back
    return None


def _locker(status: os.stat_result) -> int:
    """The process that has locked a file, by the kernel's list."""
    device, number = status.st_dev, status.st_ino
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{number}"
    with open("/proc/locks") as file:
        rows = [line.split() for line in file]
    return next((int(row[4]) for row in rows if row[1:2] != ["->"] and row[5:6] == [wanted]), 0)


def _opener(status: os.stat_result) -> int:
    """Another process that has a file open."""
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), status):
                    return int(pid)
        except OSError:  # it has ended, or belongs to another user
            continue
    return 0
