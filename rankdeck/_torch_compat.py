"""Differences between versions of torch for ranks, and the private names of torch and Python that they use: torch 2.1 and newer. A
version is recognised by its features, not by its number. `make versions` calls each of these functions with every torch. Nothing here
imports torch before it is called."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
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


def c10d_library() -> Any:
    """torch's module of C++ classes for process groups."""
    from torch._C import _distributed_c10d

    return _distributed_c10d


def inference_guard() -> Any:
    """The class behind `torch.inference_mode`, which takes three times as long: `with inference_guard()(True)`."""
    import torch

    return torch._C._InferenceMode


def watchers() -> tuple[Callable[[], bool], Callable[[], int]]:
    """Functions that return whether torch's profiler records the calling thread, and how many modes see its operators."""
    import torch

    return torch._C._autograd._profiler_enabled, torch._C._len_torch_dispatch_stack


def begin_event(name: str, tensors: Sequence[Any]) -> Callable[[], None]:
    """Begins an event of torch's profiler. Returns the function that ends it, in any thread. Torch before 2.3 does not record the shapes
    of the tensors."""
    import torch

    event: Any
    try:
        event = torch._C._profiler._RecordFunctionFast(name, tuple(tensors))
    except (AttributeError, TypeError):
        event = torch.profiler.record_function(name)
    event.__enter__()
    return lambda: event.__exit__(None, None, None)


def add_kernels(run: Callable[[Any, tuple[Any, ...]], Any]) -> None:
    """Adds a kernel to each operator of process groups. `run`: gets the group and the tensors of a call, and returns its work; None passes the call on
    to the kernel of the tensors' device. The kernels have the key BackendSelect, which every call has: torch calls them after all modes,
    and before the kernels of devices."""
    import torch
    import torch.distributed as dist

    if not hasattr(dist.Work, "boxed"):
        return

    def kernel(operator: Any, at: int, *given: Any, **named: Any) -> Any:
        work = run(dist.ProcessGroup.unbox(given[at]), given[:at])
        if work is None:
            with torch._C._ExcludeDispatchKeyGuard(key):
                return operator(*given, **named)
        return work.boxed() if len(operator._schema.returns) == 1 else (given[0], work.boxed())

    key = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _kept.append(library)
    for name in torch._C._dispatch_get_all_op_names():
        operator = getattr(torch.ops.c10d, name.partition("::")[2]).default if name.startswith("c10d::") else None
        types = [str(one.type) for one in operator._schema.arguments] if operator else []
        for at in [at for at, kind in enumerate(types) if kind.endswith(".ProcessGroup")]:
            library.impl(name.partition("::")[2], functools.partial(kernel, operator, at), "BackendSelect")


_kept: list[Any] = []  # libraries of kernels, which end with their object


def add_backend(name: str, create: Callable[..., Any], devices: list[str]) -> None:
    """Registers a backend whose groups are all in Python, unless there is one of that name."""
    import torch.distributed as dist

    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, create, extended_api=True, devices=devices)
        # torch 2.15 raises where its flight recorder finds nothing in C++.
        left_out: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
        left_out.add(name)


def add_mpi(create: Callable[..., Any], creator: type, devices: list[str]) -> None:
    """Registers the backend `mpi`. Up to torch 2.13, torch checks for this name before it looks for plugins, creates the group by a class, and
    gives it an empty store, with which no group of another backend can be made."""
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        add_backend("mpi", create, devices)
    elif "MPI" not in dist.Backend._plugins:
        c10d.ProcessGroupMPI = creator  # type: ignore[assignment,misc]
        c10d._MPI_AVAILABLE = True
        empty = c10d.Store
        c10d.Store = lambda: _launchers_store() or empty()  # type: ignore[assignment,misc]


def _launchers_store() -> Any:
    """The store that the launcher hosts, as torchrun and rankdeck do; None if it hosts none."""
    import torch.distributed as dist

    names = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # a bare mpirun sets none of them
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and names <= os.environ.keys()
    return dist.PrefixStore("default_pg", next(dist.rendezvous("env://"))[0]) if hosted else None  # type: ignore[attr-defined]


def mpi_group() -> tuple[str, timedelta, int | None]:
    """Name, timeout and own rank of the group for which torch, up to 2.13, has called the caller of this function. They are local
    variables of torch's `_new_process_group_helper`, which passes none of them."""
    import torch.distributed as dist

    found = sys._getframe(2).f_locals
    return str(found.get("group_name", "")), found.get("timeout") or dist.default_pg_timeout, found.get("group_rank")


def find_groups() -> list[tuple[Any, str, list[int]]]:
    """The process groups: each with its name and ranks. Imports nothing, because the main thread may hang in an import."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return [(group, name, sorted(world.pg_group_ranks[group])) for group, name in list(world.pg_names.items())]


def recorders() -> list[Callable[[], str]]:
    """torch's functions that dump what its flight recorder has, for all backends and for nccl. Both hold the GIL: 28 to 79 ms were
    measured with 2,000 recorded entries. Imports nothing."""
    library = sys.modules["torch._C._distributed_c10d"]
    names = "_dump_fr_trace_json", "_dump_nccl_trace_json"
    return [getattr(library, name) for name in names if hasattr(library, name)]


def receive_objects_without_numpy() -> None:
    """Lets torch's object collectives work where numpy is missing: torch 2.13 reads the bytes that it has received by way of numpy.
    `torch.distributed.rpc` starts with one of them. Every rank calls it before it receives an object."""
    import ctypes
    import pickle

    import torch.distributed as dist

    def received(tensor: Any, size: Any, *_: object) -> Any:  # torch 2.15 gives one argument more
        host = tensor.cpu().contiguous()
        return pickle.loads(ctypes.string_at(host.data_ptr(), int(size)))

    dist.distributed_c10d._tensor_to_object = received


def versions(tensors: Sequence[Any]) -> int:
    """Returns a number that changes when one of these tensors is written to."""
    return hash(tuple([tensor._version for tensor in tensors]))


def version_of_scaler(value: Any) -> int | None:
    """Returns a number that changes when a gradient scaler notes something; None if the value is no scaler."""
    if not hasattr(value, "_growth_tracker"):
        return None
    return 0 if value._growth_tracker is None else int(value._growth_tracker._version)


def buffers_of(module: Any) -> dict[str, Any]:
    """The buffers of a module itself, to read and to replace."""
    found: dict[str, Any] = module._buffers
    return found


def buffers_outside_state(module: Any) -> set[str]:
    """Names of a module's own buffers that are not in its state (`persistent=False`)."""
    found: set[str] = module._non_persistent_buffers_set
    return found


def is_initializing(spec: object) -> bool:
    """Whether a module of this spec is being imported: what importlib itself asks."""
    return bool(getattr(spec, "_initializing", False))


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


def held_groups() -> list[Any]:
    """References to all process groups, without which a group ends when it is aborted. Torch before 2.8 ends a group with the interpreter's lock
    held, so it gets none."""
    import torch.distributed as dist

    return [] if joins_threads_with_lock() else list(dist.distributed_c10d._world.pg_map)


def can_change_timeout() -> bool:
    """Whether the timeout of a process group can be changed: torch 2.4 and newer."""
    import torch.distributed as dist

    return hasattr(dist.distributed_c10d, "_set_pg_timeout")


def change_timeout(seconds: float) -> None:
    """Sets the timeout of the default process group, if it can be changed."""
    import torch.distributed as dist

    if can_change_timeout():
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def joins_threads_with_lock() -> bool:
    """Whether the end of a process group holds the interpreter's lock while it joins its threads, and one of them may wait for this lock:
    torch before 2.8."""
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
