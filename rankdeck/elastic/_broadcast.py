"""Sends values of one rank to all others, tensor by tensor.

A receiving rank keeps its values until it has received the last tensor, so that nothing changes if the source dies meanwhile. This
needs host memory for a second copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._objects import broadcast_object

if TYPE_CHECKING:
    import torch


class _Slot(NamedTuple):
    """Replaces a tensor in the pickled values."""

    number: int
    shape: tuple[int, ...]
    dtype: Any
    device: str


def broadcast(values: Any, source: int, *, mine: bool, group_device: torch.device) -> Any:
    """Sends the values of one rank to all. A collective: all ranks must call it.

    Args:
        values: nested dicts, lists and tuples of tensors and values that pickle supports. On receiving ranks, their current
            values: tensors at the same place with the same shape and type are overwritten in place.
        source: rank that sends.
        mine: whether that is this rank.
        group_device: the device whose tensors the process group supports.

    Returns:
        The values of the source.

    Raises:
        RuntimeError: from torch, if a rank is lost. The values are unchanged then.
    """
    import torch
    import torch.distributed as dist

    tensors: list[torch.Tensor] = []
    packed = broadcast_object(_pack(values, tensors) if mine else None, source, group_device)
    if mine:
        for tensor in tensors:
            if tensor.numel():
                dist.broadcast(_as_bytes(tensor.detach().to(group_device)), src=source)
        return values
    slots = list(_slots(packed))
    received = []
    for _, slot in slots:
        spare = torch.empty(slot.shape, dtype=slot.dtype)
        if spare.numel():
            here = _as_bytes(spare)
            message = here.to(group_device)
            dist.broadcast(message, src=source)
            if message is not here:
                here.copy_(message)
        received.append(spare)
    own = dict(_tensors(values))
    with torch.no_grad():
        return _unpack(packed, [_commit(own.get(place), slot, received) for place, slot in slots])


def _commit(own: torch.Tensor | None, slot: _Slot, received: list[torch.Tensor]) -> torch.Tensor:
    """Copies a received tensor into this rank's own if that is possible, and frees the received one."""
    import torch

    spare, received[slot.number] = received[slot.number], torch.empty(0)
    if own is None or own.shape != slot.shape or own.dtype != slot.dtype or shares_elements(own):
        return spare.to(slot.device)
    own.detach().copy_(spare)
    return own


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory, as after `expand`: such a tensor can't be written."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as bytes, because a backend may not support its dtype."""
    import torch

    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return value  # not one block of memory: pickle it
        tensors.append(value)
        kind = value.device.type  # without the index, which differs between ranks
        return _Slot(len(tensors) - 1, tuple(value.shape), value.dtype, kind)
    if isinstance(value, dict):
        return {key: _pack(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_pack(item, tensors) for item in value)
    return value


def _unpack(packed: Any, received: list[torch.Tensor]) -> Any:
    if isinstance(packed, _Slot):
        return received[packed.number]
    if isinstance(packed, dict):
        return {key: _unpack(item, received) for key, item in packed.items()}
    if type(packed) in (list, tuple):
        return type(packed)(_unpack(item, received) for item in packed)
    return packed


def _walk(value: Any, kind: type, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, kind):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, kind, (*place, key))
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from _walk(item, kind, (*place, number))


def _slots(packed: Any) -> Iterator[tuple[tuple[Any, ...], _Slot]]:
    return _walk(packed, _Slot)


def _tensors(values: Any) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    import torch

    return _walk(values, torch.Tensor)
