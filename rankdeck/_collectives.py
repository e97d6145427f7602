"""Lets `rankdeck stacks` tell who waits for whom: a thread writes down what the process groups of this rank are at, when it is asked.

The agent asks through a named pipe, in which the thread sleeps; the answer is one JSON line at the end of a file. Ranks that hang answer,
since torch gives the GIL back while it waits for other ranks. What is written is the layout of torch's flight recorder, with
the newest entries of each group only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

KEPT = 8
"""Newest collectives of a group over one backend, and newest transfers, that are told, besides the oldest that is under way."""

MAX_TENSORS = 16
"""Of an operation whose sizes are told."""

MAX_LINE = 1 << 14
"""Bytes of an answer. What is too long is left out, first that of groups in which nothing is under way."""

_RECORDERS = "_dump_fr_trace_json", "_dump_nccl_trace_json"
"""Of all backends, and nccl's own. Both hold the GIL, for less than 0.1 s where 2,000 entries are recorded: 28 to 79 ms were measured."""

_FIELDS = (
    "process_group", "pg_id", "collective_seq_id", "profiling_name", "is_p2p", "retired", "state", "time_created_ns",
)  # fmt: skip

_joined_at = 0
"""When this process made its process group, in nanoseconds: what is older belongs to a group that is gone."""

Entry = dict[str, Any]


def listen() -> None:
    """Lets this rank be asked, from its first process group on. Never raises."""
    global _joined_at
    path, pid = os.environ.get("RANKDECK_STACKS"), os.getpid()
    if not path or os.getsid(0) != pid or os.environ.setdefault("RANKDECK_PID", str(pid)) != str(pid):
        return  # a child of a rank is no rank
    is_first, _joined_at = not _joined_at, time.time_ns()
    if not is_first:
        return
    stem = path[: -len("stacks")]
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(stem + "asked", 0o600)
        asked = os.open(stem + "asked", os.O_RDWR | os.O_CLOEXEC)  # both ends: it does not end when who asked has gone
        answers = os.open(stem + "collectives", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        threading.Thread(target=_answer, args=(asked, answers), name="rankdeck collectives", daemon=True).start()
    except (OSError, RuntimeError):
        return  # a courtesy: training does not depend on it


def _answer(asked: int, answers: int) -> None:
    """Ends where a script has closed these descriptors, whose numbers may mean files of its own by now."""
    own = _files(asked, answers)
    with contextlib.suppress(OSError):
        while os.read(asked, 4096) and _files(asked, answers) == own:
            try:
                line = _line()
            except Exception:  # noqa: BLE001 - torch's inside changes; who asks takes an empty line for silence
                line = ""
            with contextlib.suppress(OSError):
                os.write(answers, line.encode() + b"\n")


def _files(*descriptors: int) -> list[tuple[int, int]]:
    """Which files these are."""
    return [(status.st_dev, status.st_ino) for status in map(os.fstat, descriptors)]


def _line() -> str:
    """What all groups are at. Nothing is imported here, since the main thread may hang in an import."""
    torch_c10d, library = (
        sys.modules[f"torch.{name}"] for name in ("distributed.distributed_c10d", "_C._distributed_c10d")
    )
    world = torch_c10d._world
    entries, is_evicted = _recorded(library)
    ranks = {}
    for group, name in list(world.pg_names.items()):
        ranks[name] = sorted(world.pg_group_ranks[group])
        if operations := getattr(group, "_operations", None):  # one of ours, which torch does not record
            entries += _of_operations(operations, name, group.group_desc)
    spans: dict[str, list[list[int]]] = {}
    told: list[Entry] = []
    size = 0
    for of_group in _by_group(entries):
        name = of_group[0]["process_group"][0]
        own = {name: _spans(ranks[name])} if name in ranks else {}
        length = len(json.dumps(own)) + len(json.dumps(of_group))
        if size + length > MAX_LINE - 100:  # what stands around them
            is_evicted = True
            continue
        size += length
        spans.update(own)
        told += of_group
    return json.dumps({"now": time.time_ns(), "evicted": is_evicted, "groups": spans, "entries": told})


def _recorded(library: Any) -> tuple[list[Entry], bool]:
    """What torch has recorded, and whether it has forgotten something."""
    entries: list[Entry] = []
    is_evicted = False
    for name in _RECORDERS:
        if dump := getattr(library, name, None):
            found = json.loads(dump()).get("entries") or []
            is_evicted = is_evicted or bool(found and found[0]["record_id"])
            entries += found
    return [entry for entry in entries if entry["time_created_ns"] >= _joined_at], is_evicted


def _of_operations(operations: Any, name: str, description: str) -> Iterator[Entry]:
    """The same of a group of ours: the last collective that is done, by its number alone, and what is under way."""
    begun, works = operations.begun, operations.under_way()
    now, clock = time.time_ns(), time.monotonic()
    number = begun - sum(not one.is_transfer for one in works)
    common = {"process_group": [name, description], "pg_id": 0}
    if number:
        yield {**common, "collective_seq_id": number, "profiling_name": "", "retired": True, "time_created_ns": 0}
    for one in works:
        number += not one.is_transfer
        created = now - int((clock - one.deadline + one.timeout) * 1e9)
        yield {
            **common,
            "collective_seq_id": number,
            "profiling_name": one.what,
            "is_p2p": one.is_transfer,
            "time_created_ns": created,
        }


def _by_group(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The newest of each group, and the oldest that is under way: groups first that wait. Over each backend a group has numbers
    of its own, and transfers must not crowd collectives out.
    """
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
    return not entry.get("retired") and entry.get("state") != "completed"  # nccl's watchdog retires a little later


def _shortened(entry: Entry) -> Entry:
    fields = {name: entry[name] for name in _FIELDS if name in entry}
    return {**fields, **{name: entry.get(name, [])[:MAX_TENSORS] for name in ("input_sizes", "input_dtypes")}}


def _spans(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks as `range` takes them: one span where they are evenly spread, as they are in most groups."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
        return [[ranks[0], ranks[-1] + 1, step]]
    return [[rank, rank + 1, 1] for rank in ranks]
