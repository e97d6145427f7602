"""Python objects sent between ranks as bytes. `torch.distributed` has the same, but needs numpy to receive one."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def broadcast_object(value: Any, source: int, device: torch.device) -> Any:
    """Gives an object of one rank to all ranks of the default process group. A collective: all ranks call it.

    Args:
        value: can be pickled; ignored on other ranks than the source.
        source: the rank whose object it is.
        device: where the process group takes its tensors from.

    Returns:
        The object; on the source `value` itself.
    """
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
    """Gives every rank of the default process group the objects of all of them. A collective: all ranks call it.

    Args:
        value: can be pickled.
        device: where the process group takes its tensors from.

    Returns:
        The objects by rank.
    """
    import torch.distributed as dist

    return [broadcast_object(value, rank, device) for rank in range(dist.get_world_size())]
