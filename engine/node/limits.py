"""Limits of this node for this user: open files, processes, and the memory of control groups."""

from __future__ import annotations

import contextlib
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN_FILES = 65_536
"""The soft limit of open files that the agent sets, if the hard limit allows it; ranks inherit it. Some programs close all numbers
up to the limit, so more could make them slow."""

NO_LIMIT = 1 << 60
"""The kernel shows unlimited memory as a number near 2**63."""


def open_files() -> int | None:
    """Returns how many files a process of a run may open, after `allow_open_files`; None: no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    return max(soft, OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES))


def allow_open_files() -> None:
    """Raises this process's soft limit of open files. Most systems start with 1,024, and the agent needs three for each rank."""
    limit = open_files()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def process_limits() -> dict[str, int]:
    """Returns the limits of each process that end it or its files: `cpu` in seconds, `as` and `fsize` in bytes. Those without a limit are missing."""
    soft = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0] for name in ("cpu", "as", "fsize")}
    return {name: limit for name, limit in soft.items() if limit != resource.RLIM_INFINITY}


def control_groups(controller: str, root: str) -> Iterator[tuple[str, bool]]:
    """Yields folders of this process's control groups that may limit something, at all levels, and whether they are of version 1.

    Args:
        controller: `cpu`, `memory` or `pids`.
    """
    with contextlib.suppress(OSError), open(os.path.join(root, "proc/self/cgroup"), errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            folder = os.path.join(root, "sys/fs/cgroup", controller if controllers else "")
            yield folder, bool(controllers)
            for part in path.split("/"):
                if part:
                    folder = os.path.join(folder, part)
                    yield folder, bool(controllers)


def memory_limit(root: str = "/") -> int | None:
    """Returns the bytes of memory that control groups allow this process; None: no limit."""
    limits = []
    for folder, is_old in control_groups("memory", root):
        limit = number_in(os.path.join(folder, "memory.limit_in_bytes" if is_old else "memory.max"))
        if limit is not None and limit < NO_LIMIT:
            limits.append(limit)
    return min(limits, default=None)


def cpu_limit(root: str = "/") -> float | None:
    """Returns how many CPUs control groups allow this process at the same time; None: no limit."""
    limits = []
    for folder, is_old in control_groups("cpu", root):
        if is_old:
            quota, period = (number_in(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        else:
            quota, period = _quota_in(os.path.join(folder, "cpu.max"))
        if quota is not None and period and quota > 0:  # -1: no limit
            limits.append(quota / period)
    return min(limits, default=None)


def _quota_in(path: str) -> tuple[int | None, int | None]:
    """Returns the microseconds of processor time in each period, and those of a period; None: no limit."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        quota, period = file.read().split()
        return int(quota), int(period)
    return None, None


def memory_left(root: str = "/") -> tuple[int, int] | None:
    """Returns the bytes of memory that this process can still get, and of how many; None: unknown.

    Where control groups limit it, the tightest counts. Their caches of files can be given back.
    """
    info = numbers_in(os.path.join(root, "proc/meminfo"))
    if "MemAvailable:" not in info or "MemTotal:" not in info:
        return None
    rooms = [(info["MemAvailable:"] << 10, info["MemTotal:"] << 10)]
    for folder, is_old in control_groups("memory", root):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_old else ("memory.max", "memory.current")
        limit, used = (number_in(os.path.join(folder, name)) for name in names)
        if limit is not None and used is not None and limit < NO_LIMIT:
            cache = numbers_in(os.path.join(folder, "memory.stat")).get("inactive_file", 0)
            rooms.append((max(0, limit - used + cache), limit))
    return min(rooms, key=lambda room: room[0])


def processes_left(root: str = "/") -> int | None:
    """Returns how many more processes and threads this user may start; None: no limit."""
    left = []
    for folder, _ in control_groups("pids", root):
        limit, used = (number_in(os.path.join(folder, name)) for name in ("pids.max", "pids.current"))
        if limit is not None and used is not None:
            left.append(limit - used)
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:  # the kernel does not limit root
        left.append(soft - threads_of(os.getuid(), root))
    return max(0, min(left)) if left else None


def numbers_in(path: str) -> dict[str, int]:
    """Returns the numbers in a file with lines of a name and a number; empty if it can't be read."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return {words[0]: int(words[1]) for line in file if len(words := line.split()) >= 2}
    return {}


def number_in(path: str) -> int | None:
    """Returns the number in a file; None if there is none, as in `max`."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return None


def threads_of(user: int, root: str = "/") -> int:
    """Returns the number of threads of a user's processes."""
    count, proc = 0, os.path.join(root, "proc")
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError, KeyError), open(os.path.join(proc, name, "status"), "rb") as file:
                # Bytes, because any user's process may have a name that is not UTF-8.
                status = dict(line.split(b":", 1) for line in file if b":" in line)
                if int(status[b"Uid"].split()[0]) == user:
                    count += int(status[b"Threads"])
    return count
