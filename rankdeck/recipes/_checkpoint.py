"""Checkpoints of the recipes: one file that rank 0 writes and reads, and that a kill can't leave half written.

Only rank 0 touches the file, and what it finds is what every rank gets: on nodes without a shared file system the others
could not read it, and on a slow one they might disagree on whether it is there.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import rankdeck
from rankdeck._objects import broadcast_object
from rankdeck.recipes._refusal import refuse


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
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def keep_checkpoint(path: Path, state: dict[str, Any], step: int) -> bool:
    """Writes a checkpoint of a step and reports it. A full disk costs this checkpoint only: a line on stderr says so.

    Args:
        path, state: as for `write_checkpoint`.
        step: the training's last one.

    Returns:
        Whether it was written.
    """
    try:
        write_checkpoint(path, state)
    except (OSError, RuntimeError) as error:  # torch.save reports a short write as RuntimeError
        reason = str(error).partition("\n")[0]
        print(f"no checkpoint of step {step} in {path.parent}: {reason}; training goes on", file=sys.stderr, flush=True)  # noqa: T201
        return False
    rankdeck.log(step=step, checkpoint=step)
    return True


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What is at `path`, with its tensors on `device`; None where there is no file.

    Raises:
        SystemExit: the file is damaged, or can't be read.
    """
    data = _bytes_of(path)
    return None if data is None else _load(data, path, device)


def agree_on_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What rank 0 finds at `path`, on every rank. A collective: all ranks call it.

    Args:
        path: read by rank 0 only.
        device: of this rank; the process group's messages go through it.

    Returns:
        The state, with its tensors on the CPU; None where rank 0 found no file.

    Raises:
        SystemExit: the file is damaged, or rank 0 can't read it; every rank raises it.
    """
    found = broadcast_object(_bytes_of(path) if dist.get_rank() == 0 else None, 0, device)
    return None if found is None else _load(found, path, torch.device("cpu"))


def refuse_other(path: Path, saved: dict[str, Any], **shape: object) -> None:
    """Refuses the checkpoint of a training of another shape.

    Args:
        path: of the checkpoint.
        saved: what is in it.
        **shape: what must be in it.

    Raises:
        SystemExit: something else is.
    """
    for name, value in shape.items():
        if saved.get(name) != value:
            refuse(
                f"{path} is of another training: {name} is {saved.get(name, 'missing')} there, and {value} here; "
                "name another --checkpoint-dir, or delete it"
            )


def _bytes_of(path: Path) -> bytes | str | None:
    """What a file holds, or why it can't be read; None: there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)


def _load(data: bytes | str, path: Path, device: torch.device) -> dict[str, Any]:
    """Reads a checkpoint; exits where that can't be done, with the reason if `data` is a text."""
    if isinstance(data, str):
        refuse(f"{path} can't be read as a checkpoint: delete it, or name another --checkpoint-dir ({data})")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        said = str(error).strip().partition("\n")[0][:200]
        refuse(f"{path} can't be read as a checkpoint: delete it, or name another --checkpoint-dir ({said})")
    return state
