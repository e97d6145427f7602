"""Checkpoints of the recipes: one file that rank 0 writes and reads, and that a kill can't leave half written.

Only rank 0 touches the file, and what it finds is what every rank gets: on nodes without a shared file system the others
could not read it, and on a slow one they might disagree on whether it is there.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankdeck._objects import broadcast_object


def checkpoint_path(folder: str, recipe: str) -> Path:
    """Where a recipe keeps its checkpoint.

    Args:
        folder: as the user named it; empty: `$RANKDECK_CHECKPOINTS`, which belongs to one run, so that a restart resumes
            and a new run starts afresh; else `checkpoints/<recipe>` in the working directory.
        recipe: its name.
    """
    return Path(folder or os.environ.get("RANKDECK_CHECKPOINTS") or f"checkpoints/{recipe}") / "checkpoint.pt"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replaces a checkpoint: whoever reads finds the old one or the new one, whenever this process is killed.

    Args:
        path: the file; its folder is made.
        state: tensors, numbers, strings, and containers of these, so that it loads with `weights_only`.

    Raises:
        OSError: it could not be written; the old one is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What is at `path`, with its tensors on `device`; None where there is no file."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def agree_on_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What rank 0 finds at `path`, on every rank. A collective: all ranks call it.

    Args:
        path: read by rank 0 only.
        device: of this rank; the process group's messages go through it.

    Returns:
        The state, with its tensors on the CPU; None where rank 0 found no file.
    """
    mine = path.read_bytes() if dist.get_rank() == 0 and path.exists() else None
    found = broadcast_object(mine, 0, device)
    if found is None:
        return None
    state: dict[str, Any] = torch.load(io.BytesIO(found), map_location="cpu", weights_only=True)
    return state
