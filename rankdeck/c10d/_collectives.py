"""The collectives of a library: its own calls, and others built from them in the same way for every library. The reductions are the same
for every backend: bool is reduced as NCCL does it, AVG is a sum that is divided, and float16 and bfloat16 are exchanged unchanged and
added in float32 by `combine`, so that the result is rounded once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.distributed import ReduceOp

from rankdeck.c10d._tensors import Tensors, overlaps

Op = TypeVar("Op")
Datatype = TypeVar("Datatype")

FLOATS = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
UNSIGNED = tuple(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name))  # torch 2.3
INTEGERS = (torch.uint8, *UNSIGNED, torch.int8, torch.int16, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)

_LINEAR = {"SUM": "SUM", "AVG": "SUM", "PREMUL_SUM": "SUM", "PRODUCT": "PRODUCT"}
_ORDERED = {"MIN": "MIN", "MAX": "MAX"}
_BITWISE = {"BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
_LOGICAL = {
    **dict.fromkeys(("SUM", "MAX", "BOR"), "BOR"),
    **dict.fromkeys(("PRODUCT", "MIN", "BAND"), "BAND"),
    "BXOR": "BXOR",
}
"""For bool: a sum of bools is True if any of them is."""

_NAMES = {kind.value: name for name, kind in ReduceOp.RedOpType.__members__.items()}
"""By torch's number of an operation, which is its hash: other ways to this number or the name take a microsecond."""


class Reduction(NamedTuple):
    """A reduction of one dtype."""

    name: str  # torch's name: SUM, PRODUCT, MIN, MAX, AVG, PREMUL_SUM, BAND, BOR, BXOR
    factor: Any  # the factor of PREMUL_SUM, a number or a tensor; otherwise None
    native: tuple[Any, Any] | None  # operation and datatype of the library; None: torch reduces, see `combine`


class Reductions(Generic[Op, Datatype]):
    """The reductions of one backend. `operations`: the library's SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR. `datatypes`: the library's
    datatype for each of FLOATS, COMPLEX and INTEGERS."""

    def __init__(self, backend: str, operations: Mapping[str, Op], datatypes: Mapping[torch.dtype, Datatype]) -> None:
        self._backend = backend
        self._table: dict[tuple[torch.dtype, str], tuple[Op, Datatype] | None] = {}
        self._found: dict[tuple[torch.dtype, int], Reduction] = {}
        kinds: tuple[tuple[tuple[torch.dtype, ...], dict[str, str]], ...] = (
            (FLOATS, {**_LINEAR, **_ORDERED}),
            (COMPLEX, _LINEAR),
            (INTEGERS, {**_LINEAR, **_ORDERED, **_BITWISE}),
        )
        for dtypes, names in kinds:
            for dtype in dtypes:
                self._table.update({(dtype, name): (operations[how], datatypes[dtype]) for name, how in names.items()})
        byte = datatypes[torch.uint8]
        self._table.update({(torch.bool, name): (operations[how], byte) for name, how in _LOGICAL.items()})
        for dtype in HALVES:
            self._table.update(dict.fromkeys((dtype, name) for name in (*_LINEAR, *_ORDERED)))
        for dtype in INTEGERS:
            del self._table[dtype, "PREMUL_SUM"]  # most factors are fractions
        for dtype in UNSIGNED:
            del self._table[dtype, "AVG"]  # torch can't divide them

    def __call__(self, op: Any, dtype: torch.dtype) -> Reduction:
        """Returns how to do a `torch.distributed.ReduceOp` on a dtype. Raises TypeError if it is not supported."""
        if (found := self._found.get((dtype, hash(op)))) is not None:
            return found
        name = _NAMES[hash(op)]
        try:
            native = self._table[dtype, name]
        except KeyError:
            able = ", ".join(one for known, one in self._table if known is dtype)
            hint = f"it supports {able}" if able else "it can be moved, but not reduced: convert it first"
            raise TypeError(f"the backend {self._backend} can't reduce {dtype} by {name}; {hint}") from None
        if name == "PREMUL_SUM":
            return Reduction(name, op.factor, native)
        return self._found.setdefault((dtype, hash(op)), Reduction(name, None, native))


def combine(rows: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Reduces over the first dimension, in torch. Sums and products of float16 and bfloat16 are rounded once, at the end."""
    if op.name == "MIN":
        return rows.amin(0)
    if op.name == "MAX":
        return rows.amax(0)
    if op.name == "PRODUCT":
        return rows.prod(0, dtype=torch.float32).to(rows.dtype)
    total = rows.sum(0, dtype=torch.float32)
    return (total.div_(len(rows)) if op.name == "AVG" else total).to(rows.dtype)


def premultiply(tensor: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Returns the input of the reduction: a new tensor if the op has a factor, else the same tensor."""
    return tensor if op.factor is None else tensor * op.factor


def divide(tensor: torch.Tensor, op: Reduction, size: int) -> None:
    """Completes a reduction by the library: AVG is a sum that is divided, towards zero for integers."""
    if op.name == "AVG":
        tensor.div_(size, rounding_mode=None if tensor.is_floating_point() or tensor.is_complex() else "trunc")


HALVES_AT_ONCE = 1 << 20
"""Items of a rank's share of float16 or bfloat16 that are reduced in one step: it limits temporary memory and fits into caches."""


class Collectives(ABC):
    """Blocking collectives of one group, on contiguous tensors in memory that the library may use.

    A subclass calls the library in the abstract methods. All ranks of the group call the same method. A choice between two
    implementations must have the same result on every rank, because different calls of a library do not match each other.

    Libraries have no datatype for float16 and bfloat16 (`op.native` is None): they move the data, and torch reduces it.
    """

    reduction: Reductions[Any, Any]  # which reductions the library supports, and how

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
