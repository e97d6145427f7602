"""Tensors as MPI sees them: memory, a count and a datatype; and which of torch's reductions MPI can do on them.

Data that is only moved goes as items of its size, whatever they mean, so that every dtype can be moved. Reductions need a meaning:
`native` knows those of MPI. For float16 and bfloat16, which MPI has no datatypes for, `combine` does them in torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

COUNT_LIMIT = 2**31 - 1
"""The largest count of items in one call: MPI 3 takes a C int. The same on every rank."""

_UNITS = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}
"""By size of an item in bytes."""

_FLOATS = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}
_COMPLEX = {torch.complex64: MPI.C_FLOAT_COMPLEX, torch.complex128: MPI.C_DOUBLE_COMPLEX}
_INTEGERS = {
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
}
_HALVES = (torch.float16, torch.bfloat16)

_LINEAR = {"SUM": MPI.SUM, "AVG": MPI.SUM, "PREMUL_SUM": MPI.SUM, "PRODUCT": MPI.PROD}
_ORDERED = {"MIN": MPI.MIN, "MAX": MPI.MAX}
_BITWISE = {"BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR}
_LOGICAL = {
    **dict.fromkeys(("SUM", "MAX", "BOR"), MPI.BOR),
    **dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.BAND),
    "BXOR": MPI.BXOR,
}
"""Of bool, as NCCL does it: a sum of bools is true where one of them is."""


class Reduction(NamedTuple):
    """A reduction of one dtype."""

    name: str
    """As torch names it: SUM, PRODUCT, MIN, MAX, AVG, PREMUL_SUM, BAND, BOR, BXOR."""
    factor: Any
    """What PREMUL_SUM multiplies with first: a number or a tensor; None otherwise."""
    native: tuple[MPI.Op, MPI.Datatype] | None
    """How MPI does it; None: torch does, see `combine`."""


def _make_table() -> dict[tuple[torch.dtype, str], tuple[MPI.Op, MPI.Datatype] | None]:
    table: dict[tuple[torch.dtype, str], tuple[MPI.Op, MPI.Datatype] | None] = {}
    kinds = (
        (_FLOATS, {**_LINEAR, **_ORDERED}),
        (_COMPLEX, _LINEAR),
        (_INTEGERS, {**_LINEAR, **_ORDERED, **_BITWISE}),
        ({torch.bool: MPI.UINT8_T}, _LOGICAL),
    )
    for datatypes, operations in kinds:
        for dtype, datatype in datatypes.items():
            for name, operation in operations.items():
                table[dtype, name] = operation, datatype
    table.update(dict.fromkeys(((dtype, name) for dtype in _HALVES for name in (*_LINEAR, *_ORDERED)), None))
    for dtype in _INTEGERS:
        del table[dtype, "PREMUL_SUM"]  # a factor is a fraction mostly
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        del table[dtype, "AVG"]  # torch can't divide them
    return table


_TABLE = _make_table()
_NAMES = {kind: name for name, kind in ReduceOp.RedOpType.__members__.items()}
"""By torch's number of an operation, whose own `name` takes a microsecond."""


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """How to do a `torch.distributed.ReduceOp` on a dtype.

    Raises:
        TypeError: it can't be done.
    """
    name = _NAMES[op.op]
    try:
        native = _TABLE[dtype, name]
    except KeyError:
        able = ", ".join(one for known, one in _TABLE if known is dtype)
        hint = f"it can do {able}" if able else "it can be moved, but not reduced: convert it first"
        raise TypeError(f"the backend mpi can't reduce {dtype} by {name}; {hint}") from None
    return Reduction(name, op.factor if name == "PREMUL_SUM" else None, native)


def combine(rows: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Reduces over the first dimension, in torch. Sums and products of halves are rounded once, at the end."""
    if op.name == "MIN":
        return rows.amin(0)
    if op.name == "MAX":
        return rows.amax(0)
    if op.name == "PRODUCT":
        return rows.prod(0, dtype=torch.float32).to(rows.dtype)
    total = rows.sum(0, dtype=torch.float32)
    return (total.div_(len(rows)) if op.name == "AVG" else total).to(rows.dtype)


def premultiply(tensor: torch.Tensor, op: Reduction) -> torch.Tensor:
    """What goes into the reduction: a new tensor if this op changes it, else the same."""
    return tensor if op.factor is None else tensor * op.factor


def divide(tensor: torch.Tensor, op: Reduction, size: int) -> None:
    """What is left to do after a reduction by MPI: AVG is a sum that is divided, towards zero for integers."""
    if op.name == "AVG":
        tensor.div_(size, rounding_mode=None if tensor.is_floating_point() or tensor.is_complex() else "trunc")


# --- memory ---------------------------------------------------------------------------------------------------------------


def unit(tensor: torch.Tensor) -> MPI.Datatype:
    """The datatype that stands for one item of a tensor when it is only moved."""
    return _UNITS[tensor.element_size()]


def memory(tensor: torch.Tensor) -> MPI.buffer:
    """The memory of a contiguous tensor."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def buffer(tensor: torch.Tensor, datatype: MPI.Datatype) -> list[Any]:
    """A contiguous tensor as an argument for MPI."""
    count = tensor.numel()
    return [MPI.buffer.fromaddress(tensor.data_ptr(), count * tensor.element_size()), count, datatype]


def pieces(tensor: torch.Tensor, most: int) -> Sequence[torch.Tensor]:
    """A contiguous tensor, cut so that no piece has more than `most` items, and all may be given to MPI."""
    count, most = tensor.numel(), min(most, COUNT_LIMIT)
    if count <= most:
        return (tensor,)
    flat = tensor.view(-1)
    return [flat[at : at + most] for at in range(0, count, most)]


class Block:
    """`count` items as one item of a datatype of its own, so that there may be more of them than an int can count.

    A context manager: the datatype is there inside.

    Args:
        item: the datatype of one item.
        count: how many there are.
        address: where they are, for use with MPI_BOTTOM; 0: where the call says.
    """

    def __init__(self, item: MPI.Datatype, count: int, address: int = 0) -> None:
        self._item, self._count, self._address = item, count, address

    def __enter__(self) -> MPI.Datatype:
        size = self._item.Get_size()
        lengths, places = [], []
        for at in range(0, self._count, COUNT_LIMIT):
            lengths.append(min(COUNT_LIMIT, self._count - at))
            places.append(self._address + at * size)
        self._datatype = self._item.Create_hindexed(lengths, places)
        self._datatype.Commit()
        return self._datatype

    def __exit__(self, *error: object) -> None:
        self._datatype.Free()


# --- where a tensor is ------------------------------------------------------------------------------------------------------


def check(tensor: torch.Tensor) -> None:
    """Refuses what has no memory that could be sent.

    Raises:
        TypeError: a sparse tensor, or one on a device that is neither CPU nor CUDA.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(f"the backend mpi can't take a tensor of layout {tensor.layout}: call to_dense() first")
    if not tensor.is_cpu and not tensor.is_cuda:
        raise TypeError(f"the backend mpi can't take a tensor on {tensor.device}: copy it to the CPU first")


def _is_direct(tensor: torch.Tensor) -> bool:
    """Whether MPI may use a tensor's own memory."""
    plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return plain and (tensor.is_cpu or os.environ.get("RANKDECK_MPI_CUDA") == "aware")


class Staged(NamedTuple):
    """A caller's tensor, and contiguous memory that MPI may use for it: its own if possible, else other memory of the host."""

    tensor: torch.Tensor
    host: torch.Tensor

    def give_back(self) -> None:
        """Brings what MPI has written to the caller's tensor. On return it is there, whatever CUDA stream looks next."""
        if self.host is not self.tensor:
            with torch.inference_mode():
                self.tensor.copy_(self.host)
            _synchronize(self.tensor)


def readable(tensor: torch.Tensor) -> Staged:
    """Memory with a tensor's contents. MPI may write there as well.

    Called in the thread that called torch, whose current CUDA stream is waited for: what was queued there writes the contents.
    """
    check(tensor)
    if _is_direct(tensor):
        _synchronize(tensor)
        return Staged(tensor, tensor)
    with torch.inference_mode():
        host = tensor.contiguous().resolve_conj().resolve_neg()
        return Staged(tensor, host.cpu() if host.is_cuda else host)


def writable(tensor: torch.Tensor) -> Staged:
    """Memory of a tensor's shape and dtype, whose contents MPI replaces.

    Called in the thread that called torch, whose current CUDA stream is waited for: what was queued there may use the tensor.
    """
    check(tensor)
    _synchronize(tensor)
    if _is_direct(tensor):
        return Staged(tensor, tensor)
    with torch.inference_mode():
        return Staged(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory, which MPI forbids for what is read and what is written."""
    start, begin = one.data_ptr(), other.data_ptr()
    return start < begin + other.numel() * other.element_size() and begin < start + one.numel() * one.element_size()
