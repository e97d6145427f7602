"""Curves of the resources that ranks use on their nodes. They have times and no steps, and are no result of a run."""

from __future__ import annotations

from types import MappingProxyType

from engine.core.metrics.gpu_use import GpuUse
from engine.core.metrics.process_use import ProcessUse

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
