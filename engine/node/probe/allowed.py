"""Limits of a machine for checks and supervisors. Agents need none of them, and are sent without this module."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence

from engine.node.limits import NO_LIMIT, control_groups, is_memory_short, number_in

TEMPLATE_LIMIT = 8 << 30  # bytes of memory that control groups must allow where a template waits for launches


def memory_limit(root: str = "/") -> int | None:
    """Returns the bytes of memory that control groups allow this process; None: no limit."""
    limits = []
    for folder, is_old in control_groups("memory", root):
        limit = number_in(os.path.join(folder, "memory.limit_in_bytes" if is_old else "memory.max"))
        if limit is not None and limit < NO_LIMIT:
            limits.append(limit)
    return min(limits, default=None)


def process_limits() -> dict[str, int]:
    """Returns the limits of each process that end it or its files: `cpu` in seconds, `as` and `fsize` in bytes. Those without a limit are missing."""
    soft = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0] for name in ("cpu", "as", "fsize")}
    return {name: limit for name, limit in soft.items() if limit != resource.RLIM_INFINITY}


def cpu_limit(root: str = "/") -> float | None:
    """Returns how many CPUs control groups allow this process at the same time; None: no limit."""
    limits = []
    for folder, is_old in control_groups("cpu", root):
        if is_old:
            quota, period = (number_in(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        else:
            quota = period = None  # no limit
            with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, "cpu.max")) as file:
                quota, period = map(int, file.read().split())
        if quota is not None and period and quota > 0:  # -1: no limit
            limits.append(quota / period)
    return min(limits, default=None)


def cpu_words(cpus: Sequence[int]) -> str:
    """Returns CPUs as the kernel lists them: `0-3,8`. They are sorted."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def has_room_for_template(root: str = "/") -> bool:
    """Whether a template may wait for further launches: not where control groups give this user little memory, nor if it is short."""
    limit = memory_limit(root)
    return (limit is None or limit >= TEMPLATE_LIMIT) and not is_memory_short(root)
