"""The collectives as calls of UCC that are waited for: contiguous tensors in the host's memory, on a team that nobody else uses.

What decides between two ways of doing one has the same value on every rank. A tensor without elements, which is so on every rank, is nothing
to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

import torch

from rankdeck.c10d import _halves
from rankdeck.c10d._reductions import Reduction, Reductions, combine, divide, premultiply
from rankdeck.c10d._tensors import overlaps
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.context import Team

_DATATYPES = {
    torch.float32: api.FLOAT32,
    torch.float64: api.FLOAT64,
    torch.complex64: api.COMPLEX64,
    torch.complex128: api.COMPLEX128,
    torch.uint8: api.UINT8,
    torch.uint16: api.UINT16,
    torch.uint32: api.UINT32,
    torch.uint64: api.UINT64,
    torch.int8: api.INT8,
    torch.int16: api.INT16,
    torch.int32: api.INT32,
    torch.int64: api.INT64,
}
_OPERATIONS = {
    "SUM": api.SUM,
    "PRODUCT": api.PROD,
    "MIN": api.MIN,
    "MAX": api.MAX,
    "BAND": api.BAND,
    "BOR": api.BOR,
    "BXOR": api.BXOR,
}

_WIDE = api.COUNTS_64_BIT | api.DISPLACEMENTS_64_BIT

reduction = Reductions("ucc", _OPERATIONS, _DATATYPES)
"""How to do one of torch's reductions."""


def all_reduce(team: Team, tensor: torch.Tensor, op: Reduction) -> None:
    """Reduces in place; the same bits on every rank."""
    if op.factor is not None:
        tensor.mul_(op.factor)
    if op.native is None:
        _halves.all_reduce(partial(all_to_all, team), partial(all_gather, team), team.size, tensor, op)
    elif tensor.numel():
        operation, datatype = op.native
        team.run(api.ALLREDUCE, dst=_info(team, tensor, datatype), op=operation, flags=api.IN_PLACE)
        divide(tensor, op, team.size)


def reduce(team: Team, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction, root: int) -> None:
    """Reduces to one rank. `result` is where the root wants it, `tensor` itself for instance; None on the others."""
    source = premultiply(tensor, op)
    if op.native is None:
        _halves.reduce(partial(gather, team, root=root), team.size, result, source, op)
    elif source.numel():
        operation, datatype = op.native
        if result is None:
            team.run(api.REDUCE, src=_info(team, source, datatype), op=operation, root=root)
            return
        if source is not result:
            result.copy_(source.view(result.shape))
        there = _info(team, result, datatype)
        team.run(api.REDUCE, src=there, dst=there, op=operation, root=root, flags=api.IN_PLACE)
        divide(result, op, team.size)


def broadcast(team: Team, tensor: torch.Tensor, root: int) -> None:
    """Gives the root's contents to all."""
    if tensor.numel():
        team.run(api.BCAST, src=_bytes(team, tensor), root=root)


def all_gather(team: Team, output: torch.Tensor, tensor: torch.Tensor, in_place: bool = False) -> None:
    """All ranks' tensors, one after the other. `in_place`: on some rank the tensor is a part of the output."""
    count = tensor.numel()
    if not count:
        return
    if in_place:
        output.view(-1)[team.rank * count : (team.rank + 1) * count] = tensor.view(-1)
    flags = api.IN_PLACE if in_place else 0
    team.run(api.ALLGATHER, src=_bytes(team, tensor), dst=_bytes(team, output), flags=flags)


def all_gather_uneven(team: Team, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """All ranks' tensors, where they differ in size."""
    outputs[team.rank].copy_(tensor.view(outputs[team.rank].shape))
    for root, output in enumerate(outputs):
        broadcast(team, output, root)


def reduce_scatter(team: Team, output: torch.Tensor, tensor: torch.Tensor, op: Reduction) -> None:
    """Reduces, and leaves each rank its share. The output may be a part of the tensor."""
    if not output.numel():
        return
    if overlaps(output, tensor):
        apart = torch.empty_like(output)
        reduce_scatter(team, apart, tensor, op)
        output.copy_(apart)
    elif op.native is None:
        rows = torch.empty(team.size, output.numel(), dtype=output.dtype)
        all_to_all(team, rows, premultiply(tensor, op))
        output.view(-1).copy_(combine(rows, op))
    else:
        operation, datatype = op.native
        source = premultiply(tensor, op)
        team.run(api.REDUCE_SCATTER, src=_info(team, source, datatype), dst=_info(team, output, datatype), op=operation)
        divide(output, op, team.size)


def reduce_scatter_uneven(team: Team, output: torch.Tensor, tensors: Sequence[torch.Tensor], op: Reduction) -> None:
    """Reduces, and leaves each rank its share, where these differ in size."""
    for root, tensor in enumerate(tensors):
        reduce(team, output if root == team.rank else None, tensor, op, root)


def gather(team: Team, output: torch.Tensor | None, tensor: torch.Tensor, root: int) -> None:
    """All ranks' tensors, one after the other, to one rank. `output` is None on the others."""
    if team.size == 1 and output is not None:  # UCC can't do it alone
        output.view(-1).copy_(tensor.view(-1))
    elif tensor.numel():
        there = {} if output is None else {"dst": _bytes(team, output)}
        team.run(api.GATHER, src=_bytes(team, tensor), root=root, **there)


def scatter(team: Team, output: torch.Tensor, tensor: torch.Tensor | None, root: int) -> None:
    """Gives each rank its share of the root's tensor, which is None on the others."""
    if not output.numel():
        return
    if tensor is None:
        team.run(api.SCATTERV, dst=_bytes(team, output), root=root)
    elif team.size == 1:
        output.view(-1).copy_(tensor.view(-1))
    else:  # UCC has no scatter of equal shares that works by itself
        sent = _Pieces(team, tensor.view(team.size, -1).unbind())
        team.run(api.SCATTERV, src=sent.info, dst=_bytes(team, output), root=root, flags=_WIDE)


def all_to_all(team: Team, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Share i of rank j becomes share j of rank i; all shares are of one size."""
    if not tensor.numel():
        return
    if overlaps(output, tensor):
        tensor = tensor.clone()
    team.run(api.ALLTOALL, src=_bytes(team, tensor), dst=_bytes(team, output))


def all_to_all_uneven(team: Team, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Tensor i of rank j becomes output j of rank i, whatever their sizes. No output overlaps a tensor."""
    sent, received = _Pieces(team, tensors), _Pieces(team, outputs)
    team.run(api.ALLTOALLV, src=sent.info, dst=received.info, flags=_WIDE)


class _Pieces:
    """Tensors anywhere in memory, as one buffer of bytes that begins with the first of them."""

    def __init__(self, team: Team, tensors: Sequence[torch.Tensor]) -> None:
        team.holds.extend((self, tensors))
        self._empty = ctypes.create_string_buffer(1)
        addresses = [tensor.data_ptr() if tensor.numel() else 0 for tensor in tensors]
        base = min(filter(None, addresses), default=ctypes.addressof(self._empty))
        numbers = ctypes.c_uint64 * len(tensors)
        self._counts = numbers(*(tensor.numel() * tensor.element_size() for tensor in tensors))
        self._displacements = numbers(*(address - base if address else 0 for address in addresses))
        self.info = api.BufferInfoV(
            base, ctypes.addressof(self._counts), ctypes.addressof(self._displacements), api.INT8, api.HOST
        )


def _info(team: Team, tensor: torch.Tensor, datatype: int) -> api.BufferInfo:
    team.holds.append(tensor)
    return api.BufferInfo(tensor.data_ptr(), tensor.numel(), datatype, api.HOST)


def _bytes(team: Team, tensor: torch.Tensor) -> api.BufferInfo:
    """A tensor that is only moved, whatever its items mean."""
    team.holds.append(tensor)
    return api.BufferInfo(tensor.data_ptr(), tensor.numel() * tensor.element_size(), api.INT8, api.HOST)
