"""The collectives of a library: its own calls, and others built from them in the same way for every library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from rankdeck.c10d._reductions import Reduction, Reductions, combine, divide, premultiply
from rankdeck.c10d._tensors import Tensors, overlaps

HALVES_AT_ONCE = 1 << 20
"""Items of a rank's share of float16 or bfloat16 that are reduced in one step: it limits temporary memory and fits into caches."""


class Collectives(ABC):
    """Blocking collectives of one group, on contiguous tensors in memory that the library may use.

    A subclass calls the library in the abstract methods. All ranks of the group call the same method. A choice between two
    implementations must have the same result on every rank, because different calls of a library do not match each other.

    Libraries have no datatype for float16 and bfloat16 (`op.native` is None): they move the data, and torch reduces it.
    """

    reduction: Reductions[Any, Any]
    """Which reductions the library supports, and how."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def _halves_at_once(self) -> int:
        return HALVES_AT_ONCE

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        """Reduces in place. The result has the same bits on every rank."""
        if op.factor is not None:
            tensor.mul_(op.factor)
        if op.native is None:
            self._all_reduce_halves(tensor, op)
        elif tensor.numel():
            self._all_reduce(tensor, *op.native)
            divide(tensor, op, self.size)

    def _all_reduce_halves(self, tensor: torch.Tensor, op: Reduction) -> None:
        """Gives every rank one share of all ranks' items; each reduces its share and sends the result to all."""
        flat, at_once = tensor.view(-1), self.size * self._halves_at_once
        for start in range(0, len(flat), at_once):
            piece = flat[start : start + at_once]
            share = -(-len(piece) // self.size)
            mine, others = (torch.zeros(self.size, share, dtype=flat.dtype) for _ in range(2))
            mine.view(-1)[: len(piece)] = piece
            self.all_to_all(others, mine)
            self.all_gather(mine, combine(others, op))
            piece.copy_(mine.view(-1)[: len(piece)])

    def reduce(self, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction, root: int) -> None:
        """Reduces to one rank. `result`: on the root, where the result goes; may be `tensor` itself. None on other ranks."""
        source = premultiply(tensor, op)
        if op.native is None:
            self._reduce_halves(result, source, op, root)
        elif source.numel():
            if result is None:
                self._reduce(source, *op.native, root)
                return
            if source is not result:
                result.copy_(source.view(result.shape))
            self._reduce(result, *op.native, root)
            divide(result, op, self.size)

    def _reduce_halves(self, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction, root: int) -> None:
        flat = tensor.view(-1)
        for start in range(0, len(flat), HALVES_AT_ONCE):
            piece = flat[start : start + HALVES_AT_ONCE]
            rows = torch.empty(self.size, len(piece), dtype=flat.dtype) if result is not None else None
            self.gather(rows, piece, root)
            if result is not None and rows is not None:
                result.view(-1)[start : start + len(piece)] = combine(rows, op)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, in_place: bool = False) -> None:
        """Gathers the tensors of all ranks, in the order of the ranks. `in_place`: whether the tensor is part of the output on any rank;
        the same value on every rank."""
        count = tensor.numel()
        if in_place:
            output.view(-1)[self.rank * count : (self.rank + 1) * count] = tensor.view(-1)
        if count:
            self._all_gather(output, tensor, in_place)

    def all_gather_uneven(self, outputs: Tensors, tensor: torch.Tensor) -> None:
        """Gathers tensors that differ in size."""
        outputs[self.rank].copy_(tensor.view(outputs[self.rank].shape))
        for root, output in enumerate(outputs):
            self.broadcast(output, root)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Reduction) -> None:
        """Reduces, and leaves each rank its share. The output may be part of the tensor."""
        if overlaps(output, tensor):
            apart = torch.empty_like(output)
            self.reduce_scatter(apart, tensor, op)
            output.copy_(apart)
        elif op.native is None:
            rows = torch.empty(self.size, output.numel(), dtype=output.dtype)
            self.all_to_all(rows, premultiply(tensor, op))
            output.view(-1).copy_(combine(rows, op))
        elif output.numel():
            self._reduce_scatter(output, premultiply(tensor, op), *op.native)
            divide(output, op, self.size)

    def reduce_scatter_uneven(self, output: torch.Tensor, tensors: Tensors, op: Reduction) -> None:
        """Reduces one tensor for each rank, and leaves each rank its own. They may differ in size."""
        for root, tensor in enumerate(tensors):
            self.reduce(output if root == self.rank else None, tensor, op, root)

    def all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Sends share i to rank i. All shares have the same size."""
        self._all_to_all(output, tensor.clone() if overlaps(output, tensor) else tensor)

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Sends the root's contents to all ranks."""

    @abstractmethod
    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor, root: int) -> None:
        """Gathers the tensors of all ranks on the root. `output` is None on other ranks."""

    @abstractmethod
    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None, root: int) -> None:
        """Gives each rank its share of the root's tensor, which is None on other ranks."""

    @abstractmethod
    def all_to_all_uneven(self, outputs: Tensors, tensors: Tensors) -> None:
        """Sends tensor i to rank i, with any sizes. No output overlaps a tensor."""

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any) -> None: ...

    @abstractmethod
    def _reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any, root: int) -> None:
        """Reduces to the root, in place there."""

    @abstractmethod
    def _all_gather(self, output: torch.Tensor, tensor: torch.Tensor, in_place: bool) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, operation: Any, datatype: Any) -> None: ...

    @abstractmethod
    def _all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> None: ...
