"""What a training script may use of rankdeck: metrics, a process group with the run's settings, this rank's device, and training
that outlives its ranks.

It needs the standard library and torch only, and it leaves torch alone until it is called, so that `import rankdeck` costs
next to nothing. Outside rankdeck (plain `python`, torchrun) the same script runs unchanged.
"""

from __future__ import annotations

from rankdeck import elastic
from rankdeck._metrics import log
from rankdeck._process_group import device, init_process_group
from rankdeck._stacks import watch

__all__ = ["device", "elastic", "init_process_group", "log"]

watch()
