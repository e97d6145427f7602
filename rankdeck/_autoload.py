"""What `import torch` calls in a rank (entry point group `torch.backends`), so that a script need not name us.

Nothing here raises: torch itself could not be imported then.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from rankdeck._collectives import listen
from rankdeck._metrics import log


def register() -> None:
    """Makes the profile's backend known to torch, where it is one of ours, and lets the meeting of ranks be told."""
    try:
        _wrap_joining()
        if "mpi" in os.environ.get("RANKDECK_BACKEND", ""):
            import rankdeck.c10d.mpi
        if "ucc" in os.environ.get("RANKDECK_BACKEND", ""):
            import rankdeck.c10d.ucc  # noqa: F401
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"rankdeck: torch can't be prepared for this backend: {type(error).__name__}: {error}\n")


def _wrap_joining() -> None:
    """Wraps `init_process_group`: where a launch hangs, who is missing is the first question, and only the ranks know. From then
    on a rank can be asked what its collectives are at.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **named: Any) -> Any:
        log(joining=True)
        listen()
        result = original(*arguments, **named)
        log(joined=True)
        return result

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
