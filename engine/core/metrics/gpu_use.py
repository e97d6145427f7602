"""Utilisation and memory of a rank's GPU, as its node reports them every two seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAX_BYTES = 1 << 53
"""Limit of a plausible value: more than any GPU has, and exact in JSON."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that a rank computes on. None: unknown to the driver."""

    utilisation: int | None
    """Percent of the time in which a kernel ran."""
    memory: int | None
    """Bytes in use by any process."""
    memory_total: int | None
    """Bytes in total."""


def read_use(values: Sequence[object]) -> GpuUse | None:
    """A node's report about one GPU; None if nothing is known. `values`: utilisation, bytes in use, bytes in total. A broken driver may
    report anything: impossible values become None. Raises ValueError: there are not three values."""
    utilisation, memory, total = values
    use = GpuUse(
        utilisation=_whole(utilisation, 100), memory=_whole(memory, MAX_BYTES), memory_total=_whole(total, MAX_BYTES)
    )
    return None if use.utilisation is None and use.memory is None else use


def _whole(value: object, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value <= limit else None
