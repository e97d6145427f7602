"""Checkpoints that survive a kill: whenever the writing process dies, the newest complete checkpoint is found again.

    from rankdeck import checkpoint

    saved = checkpoint.load("checkpoints")  # None: there is none yet
    if saved is not None:
        model.load_state_dict(saved.state["model"])
    ...
    if rank == 0:
        checkpoint.save("checkpoints", step, {"model": model.state_dict()})

Each is a file `step-N.pt`. It is written under a temporary name, synced to the disk, and renamed; only then are older ones removed. It is
read with `weights_only`, so a file of a stranger can't run code. Without a shared file system use `load_on_all_ranks`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._metrics import log
from rankdeck._objects import broadcast_object

if TYPE_CHECKING:
    import torch

VARIABLE = "RANKDECK_CHECKPOINTS"
"""Variable with a folder that belongs to one run: a restart resumes, and a new run starts afresh."""

_NAME = re.compile(r"step-(\d+)\.pt")

_TEMPORARY = ".new"  # the name of a file that is not whole yet ends with this


class Saved(NamedTuple):
    """A checkpoint that was read. `step`: after which it was written."""

    step: int
    path: Path
    state: dict[str, Any]


class DamagedError(RuntimeError):
    """There are checkpoints, and none of them can be read."""


def folder(name: str, given: str | os.PathLike[str] = "") -> Path:
    """Where a training keeps its checkpoints. `given`: as the user named it; empty: `$RANKDECK_CHECKPOINTS`, else `checkpoints/<name>` in
    the working directory."""
    return Path(given or os.environ.get(VARIABLE) or f"checkpoints/{name}")


def write(path: Path, state: dict[str, Any]) -> None:
    """Replaces one file: whoever reads finds the old one or the new one, whenever this process is killed. `path`: the file; its folder is
    made. `state`: tensors, numbers, strings, and containers of these, so that it loads with `weights_only`. Raises OSError, RuntimeError:
    it could not be written (torch reports a short write as RuntimeError); the old one is untouched."""
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems can't sync a folder
        entries = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(entries)
        finally:
            os.close(entries)


def save(folder: str | os.PathLike[str], step: int, state: dict[str, Any], *, keep: int = 2) -> bool:
    """Writes a checkpoint and reports it with `rankdeck.log`. One rank calls it. A failure costs this checkpoint only. `folder` is
    made. `keep`: how many of the newest up to this one stay, at least 1. Later ones are not removed. Returns
    whether it was written; if not, a line on stderr says why."""
    path = Path(folder) / f"step-{step}.pt"
    try:
        write(path, state)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        print(f"no checkpoint of step {step} in {folder}: {reason}; training goes on", file=sys.stderr, flush=True)  # noqa: T201
        return False
    log(step=step, checkpoint=step)
    old = [other for number, other in _whole(path.parent) if number <= step][max(keep, 1) :]
    for other in (*old, *path.parent.glob(f"step-*.pt{_TEMPORARY}")):  # the temporary file of a process that was killed
        with contextlib.suppress(OSError):
            other.unlink()
    return True


def load(folder: str | os.PathLike[str], *, map_location: Any = "cpu") -> Saved | None:
    """The newest checkpoint that can be read. If a newer one is damaged, a line on stderr names it.

    Args: folder: folder of the checkpoints, or one file that `write` has made, whose step counts as 0.
        map_location: as for `torch.load`.

    Returns:
        None: there is none.

    Raises:
        DamagedError: there are some, and none can be read.
    """
    import torch

    first = ""
    for step, path in _whole(Path(folder)):
        try:
            state = torch.load(path, map_location=map_location, weights_only=True)
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
            said = (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
            first = first or f"{path} can't be read as a checkpoint ({said})"
            continue
        if first:
            print(f"{first}; goes on from {path.name}", file=sys.stderr, flush=True)  # noqa: T201
        return Saved(step, path, state)
    if first:
        raise DamagedError(first)
    return None


def load_on_all_ranks(folder: str | os.PathLike[str], device: torch.device) -> Saved | None:
    """Gives every rank the checkpoint that rank 0 finds: other ranks need not see its files. A collective: all ranks call it.

    Args:
        folder: read by rank 0 only.
        device: device of this rank, through which the process group's messages go.

    Returns:
        The checkpoint, with its tensors on the CPU; None: rank 0 found none.

    Raises:
        DamagedError: as `load` on rank 0; every rank raises it.
    """
    import torch
    import torch.distributed as dist

    found: Saved | None = None
    message: object = None
    if dist.get_rank() == 0:
        try:
            found = load(folder)
            message = found and (found.step, str(found.path), found.path.read_bytes())
        except (DamagedError, OSError) as error:
            message = str(error)
    message = broadcast_object(message, 0, device)
    if isinstance(message, str):
        raise DamagedError(message)
    if message is None or found is not None:
        return found
    assert isinstance(message, tuple)
    step, path, data = message
    return Saved(step, Path(path), torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))


def _whole(folder: Path) -> list[tuple[int, Path]]:
    """Step and file of each checkpoint, the newest first."""
    if folder.is_file():
        return [(0, folder)]
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt")]
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)
