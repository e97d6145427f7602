"""Devices whose work runs on a stream: a collective returns before it has succeeded. If the group is aborted meanwhile, the collective
ends without an exception, and what follows on the stream uses an unfinished sum. So a step of such a device is right only if the device
finished it before any rank was lost."""

from collections.abc import Callable

DEVICES: dict[str, Callable[[], None]] = {}
"""By name of a device: waits until it has done all of its work. Elastic training asks all of them. A backend of yours adds its own."""


def add_cuda() -> None:
    """Adds CUDA, for a backend whose collectives run on its streams."""
    import torch

    DEVICES["cuda"] = torch.cuda.synchronize


def synchronize() -> None:
    """Waits until all devices have done their work."""
    for wait in DEVICES.values():
        wait()
