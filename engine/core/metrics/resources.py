"""The GPU, processor time, memory and I/O of ranks, as their nodes report them, and their curves, which have times and no steps."""

from collections.abc import Sequence
from types import MappingProxyType

import msgspec

MEBIBYTE = 1 << 20


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a rank's process uses, without its children such as data loaders. None: unknown."""

    cpu: int  # percent of one core: 400 is four cores
    memory: int  # bytes in physical memory, in whole mebibytes
    read: int | None  # bytes a second that it has read, from files, pipes and everything else, to two digits
    written: int | None  # the same for writing

    @property
    def transferred(self) -> int | None:
        """Bytes a second read and written; None: unknown."""
        return None if self.read is None or self.written is None else self.read + self.written


def process_use(values: Sequence[int | None]) -> ProcessUse:
    """A node's report about one rank (percent of a core, bytes of memory, bytes moved a second), rounded so that the same use makes no news."""
    cpu, memory, read, written = values
    return ProcessUse(
        cpu=cpu or 0, memory=round((memory or 0) / MEBIBYTE) * MEBIBYTE, read=_rough(read), written=_rough(written)
    )


def _rough(rate: int | None) -> int | None:
    return None if rate is None else int(float(f"{rate:.2g}"))


MAX_BYTES = 1 << 53  # limit of a plausible value: more than any GPU has, and exact in JSON


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that a rank computes on. None: unknown to the driver."""

    utilisation: int | None  # percent of the time in which a kernel ran
    memory: int | None  # bytes in use by any process
    memory_total: int | None  # bytes in total


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


RESOURCES = MappingProxyType(
    {
        "process.cpu": "processor time, % of one core",
        "process.memory": "memory of the process, bytes",
        "process.io": "read and written, bytes/s",
        "gpu.utilisation": "GPU utilisation, %",
        "gpu.memory": "GPU memory in use, bytes",
    }
)
"""Keys of the curves, and titles of their charts."""

MOST_RANKS = 128
"""Runs with more ranks have no such curves: they would be most of what is stored and sent of a run whose ranks report little else."""


def values_of_process(use: ProcessUse) -> dict[str, int | None]:
    """Values by key; None: unknown."""
    return {"process.cpu": use.cpu, "process.memory": use.memory, "process.io": use.transferred}


def values_of_gpu(use: GpuUse) -> dict[str, int | None]:
    """Values by key; None: unknown."""
    return {"gpu.utilisation": use.utilisation, "gpu.memory": use.memory}
