"""How busy and how full the GPU of a rank is, as a node says it. Nothing of it is written down: it holds for seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAX_BYTES = 1 << 53
"""More than any GPU has, and what JSON readers keep exactly."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that a rank computes on. None: the driver does not say."""

    utilisation: int | None
    """Percent of the time in which a kernel ran."""
    memory: int | None
    memory_total: int | None
    """Bytes in use, by whichever process, and in all."""


def read_use(said: Sequence[object]) -> GpuUse | None:
    """What a node says of one GPU; None where nothing is known.

    Args:
        said: utilisation, bytes in use, bytes in all. A driver that is not well may say anything: what can't be is unknown.

    Raises:
        ValueError: it is not three values.
    """
    utilisation, memory, total = said
    use = GpuUse(
        utilisation=_whole(utilisation, 100), memory=_whole(memory, MAX_BYTES), memory_total=_whole(total, MAX_BYTES)
    )
    return None if use.utilisation is None and use.memory is None else use


def _whole(value: object, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value <= limit else None
