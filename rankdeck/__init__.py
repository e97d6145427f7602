"""What a training script may use of rankdeck: metrics, a process group with the run's settings, this rank's device, and training
that outlives its ranks.

It needs the standard library and torch only, and it leaves torch alone until it is called, so that `import rankdeck` costs
next to nothing. Outside rankdeck (plain `python`, torchrun) the same script runs unchanged.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rankdeck._metrics import log
from rankdeck._process_group import device, init_process_group
from rankdeck._stacks import watch

if TYPE_CHECKING:
    from rankdeck import elastic

__all__ = ["device", "elastic", "init_process_group", "log"]


def __getattr__(name: str) -> Any:
    """Loads `rankdeck.elastic` when it is used first: most scripts do without."""
    if name == "elastic":
        return importlib.import_module("rankdeck.elastic")
    raise AttributeError(f"module 'rankdeck' has no attribute {name!r}")


watch()
