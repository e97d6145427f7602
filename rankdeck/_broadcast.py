"""Values of one rank given to all the others, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class _Slot(NamedTuple):
    """Stands for a tensor in what is pickled."""

    number: int
    shape: tuple[int, ...]
    dtype: Any
    device: str


def broadcast(values: Any, source: int, *, mine: bool, group_device: torch.device) -> Any:
    """Gives the values of one rank to all, tensor by tensor, so that no second copy of the whole is ever made.

    Args:
        values: any nest of dicts, lists and tuples of tensors and values that can be pickled. On other ranks than the source,
            what is there already: tensors of the same place, shape and type are filled in place.
        source: whose values everybody gets. A collective: all ranks call it.
        mine: whether that is this rank.
        group_device: where the process group's messages have to be.

    Returns:
        The values of the source.
    """
    import torch
    import torch.distributed as dist

    tensors: list[torch.Tensor] = []
    packed = [_pack(values, tensors) if mine else None]
    dist.broadcast_object_list(packed, src=source, device=group_device)
    here = dict(_tensors(values)) if not mine else {}
    received: list[torch.Tensor] = []
    with torch.no_grad():
        for place, slot in _slots(packed[0]):
            if mine:
                tensor = tensors[slot.number].detach()
                dist.broadcast(tensor.to(group_device).contiguous(), src=source)
                continue
            own = here.get(place)
            fits = own is not None and own.shape == slot.shape and own.dtype == slot.dtype
            target = (
                own.detach()
                if fits and own is not None
                else torch.empty(slot.shape, dtype=slot.dtype, device=slot.device)
            )
            message = target.to(group_device).contiguous()
            dist.broadcast(message, src=source)
            if message.data_ptr() != target.data_ptr():
                target.copy_(message)
            received.append(target)
    return values if mine else _unpack(packed[0], received)


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
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
