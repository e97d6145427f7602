"""What `import torch` calls in a rank (entry point group `torch.backends`), so that a script need not name us."""

from __future__ import annotations

import os
import sys


def register() -> None:
    """Makes the profile's backend known to torch, where it is one of ours. Never raises: torch itself could not be imported then."""
    if "mpi" not in os.environ.get("RANKDECK_BACKEND", ""):
        return
    try:
        import rankdeck.c10d.mpi  # noqa: F401
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"rankdeck: the backend mpi can't be registered: {type(error).__name__}: {error}\n")
