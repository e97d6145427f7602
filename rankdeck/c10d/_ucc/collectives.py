"""The collectives as UCC calls, on tensors in host memory and a team that nothing else uses. A tensor without elements (on every rank,
then) needs no call."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from rankdeck.c10d import _collectives
from rankdeck.c10d._collectives import COMPLEX, FLOATS, INTEGERS, Reductions
from rankdeck.c10d._tensors import Tensors
from rankdeck.c10d._ucc import api
from rankdeck.c10d._ucc.context import Team

_DATATYPES = {
    dtype: getattr(api, str(dtype).removeprefix("torch.").upper()) for dtype in (*FLOATS, *COMPLEX, *INTEGERS)
}
_OPERATIONS = {
    "PRODUCT": api.PROD,
    **{name: getattr(api, name) for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")},
}

_WIDE = api.COUNTS_64_BIT | api.DISPLACEMENTS_64_BIT

reduction = Reductions("ucc", _OPERATIONS, _DATATYPES)


class Collectives(_collectives.Collectives):
    reduction = reduction

    def __init__(self, team: Team) -> None:
        super().__init__(team.rank, team.size)
        self._team = team

    def _all_reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any) -> None:
        self._team.run(api.ALLREDUCE, dst=self._info(tensor, datatype), op=operation, flags=api.IN_PLACE)

    def _reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any, root: int) -> None:
        info = self._info(tensor, datatype)
        there = {"dst": info, "flags": api.IN_PLACE} if self.rank == root else {}
        self._team.run(api.REDUCE, src=info, op=operation, root=root, **there)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        if tensor.numel():
            self._team.run(api.BCAST, src=self._bytes(tensor), root=root)

    def _all_gather(self, output: torch.Tensor, tensor: torch.Tensor, in_place: bool) -> None:
        flags = api.IN_PLACE if in_place else 0
        self._team.run(api.ALLGATHER, src=self._bytes(tensor), dst=self._bytes(output), flags=flags)

    def _reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, operation: Any, datatype: Any) -> None:
        source, target = self._info(tensor, datatype), self._info(output, datatype)
        self._team.run(api.REDUCE_SCATTER, src=source, dst=target, op=operation)

    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor, root: int) -> None:
        if self.size == 1 and output is not None:  # UCC has no gather for one rank
            output.view(-1).copy_(tensor.view(-1))
        elif tensor.numel():
            there = {} if output is None else {"dst": self._bytes(output)}
            self._team.run(api.GATHER, src=self._bytes(tensor), root=root, **there)

    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None, root: int) -> None:
        if not output.numel():
            return
        if tensor is None:
            self._team.run(api.SCATTERV, dst=self._bytes(output), root=root)
        elif self.size == 1:
            output.view(-1).copy_(tensor.view(-1))
        else:  # UCC has no scatter of equal shares that works without further settings
            sent = _Pieces(self._team, tensor.view(self.size, -1).unbind())
            self._team.run(api.SCATTERV, src=sent.info, dst=self._bytes(output), root=root, flags=_WIDE)

    def _all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        if tensor.numel():
            self._team.run(api.ALLTOALL, src=self._bytes(tensor), dst=self._bytes(output))

    def all_to_all_uneven(self, outputs: Tensors, tensors: Tensors) -> None:
        sent, received = _Pieces(self._team, tensors), _Pieces(self._team, outputs)
        self._team.run(api.ALLTOALLV, src=sent.info, dst=received.info, flags=_WIDE)

    def _info(self, tensor: torch.Tensor, datatype: int) -> api.BufferInfo:
        self._team.holds.append(tensor)
        return api.BufferInfo(tensor.data_ptr(), tensor.numel(), datatype, api.HOST)

    def _bytes(self, tensor: torch.Tensor) -> api.BufferInfo:
        """A tensor that is moved, not reduced, so that its dtype does not matter."""
        self._team.holds.append(tensor)
        return api.BufferInfo(tensor.data_ptr(), tensor.numel() * tensor.element_size(), api.INT8, api.HOST)


class _Pieces:
    """Tensors anywhere in memory, as one buffer of bytes that starts at the lowest address of them."""

    def __init__(self, team: Team, tensors: Tensors) -> None:
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
