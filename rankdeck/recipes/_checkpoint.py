"""Checkpoints of the recipes, on top of `rankdeck.checkpoint`: a damaged one, or one of another training, ends the recipe with one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rankdeck import checkpoint
from rankdeck.recipes._refusal import refuse


def resume(folder: Path, device: torch.device, **shape: object) -> dict[str, Any] | None:
    """The state in the newest checkpoint, on every rank. A collective: all ranks call it.

    Args:
        folder: that of the checkpoints; read by rank 0 only.
        device: that of this rank; the process group's messages go through it.
        **shape: what must be in it.

    Returns:
        The state, with its tensors on the CPU, and its `step`; None: rank 0 found none.

    Raises:
        SystemExit: none can be read, or it is of a training of another shape.
    """
    return _checked(lambda: checkpoint.load_on_all_ranks(folder, device), shape)


def resume_alone(folder: Path, device: torch.device, **shape: object) -> dict[str, Any] | None:
    """The same on this rank only, without a process group, and with tensors on `device`."""
    return _checked(lambda: checkpoint.load(folder, map_location=device), shape)


def _checked(load: Callable[[], checkpoint.Saved | None], shape: dict[str, object]) -> dict[str, Any] | None:
    try:
        saved = load()
    except checkpoint.DamagedError as error:
        refuse(f"{error}: delete it, or name another --checkpoint-dir")
    if saved is None:
        return None
    for name, value in shape.items():
        if saved.state.get(name) != value:
            refuse(
                f"{saved.path} is of another training: {name} is {saved.state.get(name, 'missing')} there, and {value} here; "
                "name another --checkpoint-dir, or delete it"
            )
    return {"step": saved.step, **saved.state}
