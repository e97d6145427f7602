"""Gives the values of one rank to all the others, tensor by tensor.

A rank that receives keeps what it has until the last tensor is there: if the source dies half-way, nothing has changed. So it needs
memory of the host for a second copy meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._objects import broadcast_object

if TYPE_CHECKING:
    import torch


class _Slot(NamedTuple):
    """Stands for a tensor in what is pickled."""

    number: int
    shape: tuple[int, ...]
    dtype: Any
    device: str


def broadcast(values: Any, source: int, *, mine: bool, group_device: torch.device) -> Any:
    """Gives the values of one rank to all. A collective: all ranks call it.

    Args:
        values: any nest of dicts, lists and tuples of tensors and values that can be pickled. On other ranks than the source,
            what is there already: tensors of the same place, shape and type are filled in place.
        source: the rank whose values everybody gets.
        mine: whether that is this rank.
        group_device: where the process group takes its tensors from.

    Returns:
        The values of the source.

    Raises:
        RuntimeError: from torch, when a rank is gone. The values are as before then.
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
    """Puts what was received into this rank's own tensor, if that can take it, and gives the spare memory back."""
    import torch

    spare, received[slot.number] = received[slot.number], torch.empty(0)
    if own is None or own.shape != slot.shape or own.dtype != slot.dtype or shares_elements(own):
        return spare.to(slot.device)
    own.detach().copy_(spare)
    return own


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor are one place in memory, as `expand` makes it: such a tensor can't be written."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, whose dtype a backend may not know."""
    import torch

    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return value  # its memory is not one piece: it is pickled
        tensors.append(value)
        kind = value.device.type  # of a peer, the number of its GPU would mean nothing
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
