"""Differences between versions of torch for ranks, and the private names of torch that they use: torch 2.1 and newer. A version is
recognised by its features, not by its number. Nothing here imports torch before it is called."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

SETTLE_TIME = 0.5  # longest wait in seconds for threads of torch to sleep


def set_once(store: Any, key: str, text: str) -> bytes:
    """Sets a value in a store, unless there is one. Returns the value that is there."""
    import torch.distributed as dist

    if hasattr(dist, "DistStoreError"):
        there: bytes = store.compare_set(key, "", text)
        return there
    if store.add(f"{key}/set", 1) == 1:  # the `compare_set` of torch 2.1 ends the process with SIGSEGV
        store.set(key, text)
    there = store.get(key)
    return there


def mark_key(store: Any, key: str) -> None:
    """Lets `has_marked` find a key that has a value."""
    if not hasattr(store, "check"):
        store.add(f"{key}/marks", 1)


def has_marked(store: Any, keys: Sequence[str]) -> bool:
    """Whether a TCPStore has all these keys, whose writers have called `mark_key`. Does not wait for them; `check` is of torch 2.4."""
    if hasattr(store, "check"):
        return bool(store.check(list(keys)))
    return all(store.add(f"{key}/marks", 0) for key in keys)


def leave_recorder_out(backend: str) -> None:
    """Keeps torch's flight recorder from groups of a backend that are all in Python: torch 2.15 raises where it finds nothing in C++."""
    import torch.distributed as dist

    left_out: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    left_out.add(backend)


def abort_group() -> None:
    """Ends the default process group, even a partly formed one, without waiting for peers."""
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    with contextlib.suppress(Exception):  # a backend without abort, or torch before 2.6
        c10d._abort_process_group()
    if dist.is_initialized():  # torch 2.6 aborts groups of nccl only
        dist.destroy_process_group()
    # torch names a group by this count. A group that failed to form leaves it at 1, and ranks with different names never meet.
    c10d._world.group_count = 0


def can_change_timeout() -> bool:
    """Whether the timeout of a process group can be changed: torch 2.4 and newer."""
    import torch.distributed as dist

    return hasattr(dist.distributed_c10d, "_set_pg_timeout")


def change_timeout(seconds: float) -> None:
    """Sets the timeout of the default process group, if it can be changed."""
    import torch.distributed as dist

    if can_change_timeout():
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def calls_entry_points() -> bool:
    """Whether `import torch` calls entry points of the group `torch.backends`: torch 2.5 and newer."""
    import torch

    return hasattr(torch, "_import_device_backends")


def joins_threads_with_lock() -> bool:
    """Whether the end of a process group joins its threads with the interpreter's lock held, for which one of them may wait: torch before 2.8."""
    import torch.distributed as dist

    return not hasattr(dist.TCPStore, "queue_push")  # type: ignore[attr-defined]  # of the same version


def settle_before(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `destroy_process_group` so that it is called when no thread of torch is about to free a tensor, for which it needs the interpreter's lock."""

    @functools.wraps(original)
    def destroy_process_group(*arguments: Any, **named: Any) -> Any:
        await_idle_threads()
        return original(*arguments, **named)

    return destroy_process_group


def await_idle_threads() -> None:
    """Waits until all other threads of this process sleep at two looks in a row, for at most `SETTLE_TIME`. Between the looks no thread
    waits for the interpreter's lock: one that does at the first look has it at the second."""
    looks, end = 0, time.monotonic() + SETTLE_TIME
    while looks < 2 and time.monotonic() < end:
        time.sleep(0.001)
        looks = looks + 1 if _others_sleep() else 0


def _others_sleep() -> bool:
    own = str(threading.get_native_id())
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if task != own and state != b"S":
            return False
    return True
