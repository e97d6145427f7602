"""`torch.distributed` with the settings of the run's profile: backend, timeout, and the device that matches. Scripts that call
`torch.distributed.init_process_group` themselves run under rankdeck too."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PLACED_BY = frozenset({"rank", "world_size", "store", "init_method"})
"""Arguments of torch's function that say where the ranks meet."""


def init_process_group(backend: str | None = None, timeout: float | None = None, **kwargs: Any) -> None:
    """Joins the default process group. The profile's settings apply where the script gives none.

    Works under rankdeck and torchrun. Under plain `python script.py` it makes a group of one rank, and sets `RANK`,
    `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as torchrun would.

    With nccl it also makes this rank's GPU the current one (see `device`).

    Args:
        backend: torch's name of it; None: `$RANKDECK_BACKEND`, else nccl if CUDA is available, else gloo.
        timeout: seconds for a collective; None: `$RANKDECK_TIMEOUT`, else torch's default for the backend.
        **kwargs: passed on to `torch.distributed.init_process_group`.

    Raises:
        ValueError: the timeout is not a number of seconds above 0.
        RuntimeError: this rank has no GPU; or torch reports that ranks did not join.
    """
    import torch.distributed

    # Its functions have the group of the moment as a default argument (torch 2.13), and optimizers import it. Imported in a group,
    # it would keep that one alive, and threads of gloo that still run when the interpreter ends can abort the process.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.distributed.nn.functional")
    backend = backend or _default_backend()
    if "RANKDECK_RUN" in os.environ:
        from rankdeck._autoload import register

        register()
    if "mpi" in backend:
        import rankdeck.c10d.mpi  # registers the backend with torch
    if "ucc" in backend:
        import rankdeck.c10d.ucc  # noqa: F401
    seconds = _timeout(timeout)
    if seconds is not None:
        kwargs["timeout"] = timedelta(seconds=seconds)
    if "nccl" in backend:
        _current_gpu()
    # Under mpirun, MPI provides rank and world size.
    if "mpi" not in backend and not os.environ.keys() & {"RANK", "WORLD_SIZE"} and not kwargs.keys() & _PLACED_BY:
        # The kernel chooses the port, and the store keeps it, so that no other process can take it.
        store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)  # type: ignore[attr-defined]  # documented, not re-exported
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
        kwargs.update(store=store, rank=0, world_size=1)
    torch.distributed.init_process_group(backend, **kwargs)


def device() -> torch.device:
    """Returns the device that this rank computes on: with the backend nccl `cuda:LOCAL_RANK`, which becomes the current device, otherwise
    the CPU. Before there is a process group, the backend is the one that `init_process_group` would use. Raises RuntimeError if this rank
    has no GPU."""
    import torch.distributed

    group = torch.distributed
    backend = group.get_backend_config() if group.is_initialized() else _default_backend()
    return _current_gpu() if "nccl" in backend else torch.device("cpu")


def _default_backend() -> str:
    import torch

    return os.environ.get("RANKDECK_BACKEND") or ("nccl" if torch.cuda.is_available() else "gloo")


def _timeout(argument: float | None) -> float | None:
    """Returns seconds, or None if neither argument nor environment has a value."""
    text = os.environ.get("RANKDECK_TIMEOUT") if argument is None else str(argument)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        name = "RANKDECK_TIMEOUT" if argument is None else "timeout"
        raise ValueError(f"{name} is {text!r}: a number of seconds above 0 is needed")
    return seconds


def _current_gpu() -> torch.device:
    import torch

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise RuntimeError(
            f"local rank {local_rank} needs GPU {local_rank}, but this process sees {count}: start fewer ranks on this "
            "node, let CUDA_VISIBLE_DEVICES name all of its GPUs, or use the backend gloo"
        )
    gpu = torch.device("cuda", local_rank)
    torch.cuda.set_device(gpu)
    return gpu
