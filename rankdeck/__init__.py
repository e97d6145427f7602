"""The API for training scripts: metrics, a process group with the run's settings, this rank's device, checkpoints, and elastic training.
It needs only the standard library and torch, and imports torch only when a function needs it. Outside rankdeck (plain `python`, torchrun)
the same script runs unchanged."""

import importlib
from typing import TYPE_CHECKING, Any

from rankdeck._metrics import log
from rankdeck._output import outlive_full_disks
from rankdeck._process_group import device, init_process_group
from rankdeck._stacks import watch

if TYPE_CHECKING:
    from rankdeck import checkpoint, elastic

__all__ = ["checkpoint", "device", "elastic", "init_process_group", "log"]


def __getattr__(name: str) -> Any:
    """Imports a part on first use: most scripts do not need it."""
    if name in ("checkpoint", "elastic"):
        return importlib.import_module(f"rankdeck.{name}")
    raise AttributeError(f"module 'rankdeck' has no attribute {name!r}")


watch()
outlive_full_disks()
