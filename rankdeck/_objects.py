"""Sends Python objects between ranks as bytes. The same functions in `torch.distributed` need numpy to receive one."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def broadcast_object(value: Any, source: int, device: torch.device) -> Any:
    """Sends an object from one rank to all ranks of the default process group. A collective: all ranks must call it. `value`: the object,
    which pickle must support; ignored on ranks other than `source`. `device`: the device whose tensors the process group supports.
    Returns the object; `value` itself on the source."""
    import torch
    import torch.distributed as dist

    is_source = dist.get_rank() == source
    data = bytearray(pickle.dumps(value)) if is_source else bytearray()
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, src=source)
    if not is_source:
        data = bytearray(int(size))
    here = torch.frombuffer(data, dtype=torch.uint8)
    message = here.to(device)
    dist.broadcast(message, src=source)
    if is_source:
        return value
    here.copy_(message)
    return pickle.loads(data)


def all_gather_objects(value: Any, device: torch.device) -> list[Any]:
    """Gathers one object from each rank of the default process group on all of them. A collective: all ranks must call it. `value`,
    `device`: see `broadcast_object`. Returns the objects, in the order of the ranks."""
    import torch.distributed as dist

    return [broadcast_object(value, rank, device) for rank in range(dist.get_world_size())]
