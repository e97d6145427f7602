"""Sends values of one rank to all others, small tensors together. A receiving rank keeps its values until it has received the last tensor, so
that nothing changes if the source dies meanwhile. This needs host memory for a second copy."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck._objects import broadcast_object
from rankdeck.elastic._digest import as_bytes

if TYPE_CHECKING:
    import torch


MESSAGE = 8 << 20  # bytes of small tensors that are sent together


class Slot(NamedTuple):
    """Facts about a tensor that a receiver needs before the tensor arrives."""

    shape: tuple[int, ...]
    dtype: Any
    device: str  # the device without its index, which differs between ranks
    is_parameter: bool
    requires_grad: bool


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """The number of a tensor. A tensor that occurs twice has one number, so that it stays one object."""
        import torch

        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
            return None  # of a sparse tensor, pickle finds the strided parts
        if type(value) not in (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)):
            raise TypeError(f"{type(value).__name__} has no memory of its own, or holds only a shard")
        if value.device.type == "meta":
            raise TypeError("a tensor on the device meta has no values")
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def pack(values: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Returns values as bytes, and the tensors in them, which are not in the bytes. Raises what pickle raises, or TypeError."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(values)
    return file.getvalue(), packer.tensors


def unpack(data: bytes, tensors: list[torch.Tensor]) -> Any:
    return _Unpacker(data, tensors).load()


def broadcast(values: Any, source: int, *, mine: bool, group_device: torch.device) -> Any:
    """Sends the values of one rank to all. A collective: all ranks must call it.

    Args:
        values: tensors and values that pickle supports, in any nest; ignored on receiving ranks.
        group_device: the device whose tensors the process group supports.

    Returns:
        The values of the source, with its types and dtypes; on the source itself, `values`.

    Raises:
        RuntimeError: from torch, if a rank is lost.
    """
    import torch
    import torch.distributed as dist

    if mine:
        data, tensors = pack(values)
        broadcast_object((data, [_slot_of(tensor) for tensor in tensors]), source, group_device)
        for some in _messages(tensors):
            parts = [as_bytes(tensor.detach().to(group_device)) for tensor in some]
            dist.broadcast(parts[0] if len(parts) == 1 else torch.cat(parts), src=source)
        return values
    data, slots = broadcast_object(None, source, group_device)
    spares = [torch.empty(slot.shape, dtype=slot.dtype) for slot in slots]
    for some in _messages(spares):
        parts = [as_bytes(spare) for spare in some]
        is_direct = len(parts) == 1 and group_device.type == "cpu"
        message = parts[0] if is_direct else torch.empty(sum(map(len, parts)), dtype=torch.uint8, device=group_device)
        dist.broadcast(message, src=source)
        for part, arrived in zip(parts, message.split([*map(len, parts)])) if not is_direct else ():
            part.copy_(arrived)
    received = []
    for spare, slot in zip(spares, slots):
        spare = spare.to(slot.device)
        received.append(torch.nn.Parameter(spare, slot.requires_grad) if slot.is_parameter else spare)
    return unpack(data, received)


def _messages(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields the tensors that have contents, in groups of at most `MESSAGE` bytes, or alone: a collective takes long for few bytes."""
    group: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if group and size + more > MESSAGE:
            yield group
            group, size = [], 0
        if more:
            group, size = [*group, tensor], size + more
    if group:
        yield group


def _slot_of(tensor: torch.Tensor) -> Slot:
    import torch

    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return Slot(tuple(tensor.shape), tensor.dtype, tensor.device.type, is_parameter, tensor.requires_grad)
