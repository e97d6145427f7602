"""Which of torch's reductions are supported for which dtype, by the library or, for float16 and bfloat16, in torch.

The same for every backend here: bool is reduced as NCCL does it, AVG is a sum that is divided, and float16 and bfloat16 are exchanged
unchanged and added in float32 by `combine`, so that the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.distributed import ReduceOp

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

_NAMES = {kind: name for name, kind in ReduceOp.RedOpType.__members__.items()}
"""By torch's number of an operation, because its own `name` takes a microsecond."""


class Reduction(NamedTuple):
    """A reduction of one dtype."""

    name: str
    """torch's name: SUM, PRODUCT, MIN, MAX, AVG, PREMUL_SUM, BAND, BOR, BXOR."""
    factor: Any
    """The factor of PREMUL_SUM, a number or a tensor; otherwise None."""
    native: tuple[Any, Any] | None
    """Operation and datatype of the library; None: torch reduces, see `combine`."""


class Reductions(Generic[Op, Datatype]):
    """The reductions of one backend. `operations`: the library's SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR. `datatypes`: the library's
    datatype for each of FLOATS, COMPLEX and INTEGERS."""

    def __init__(self, backend: str, operations: Mapping[str, Op], datatypes: Mapping[torch.dtype, Datatype]) -> None:
        self._backend = backend
        self._table: dict[tuple[torch.dtype, str], tuple[Op, Datatype] | None] = {}
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
        name = _NAMES[op.op]
        try:
            native = self._table[dtype, name]
        except KeyError:
            able = ", ".join(one for known, one in self._table if known is dtype)
            hint = f"it supports {able}" if able else "it can be moved, but not reduced: convert it first"
            raise TypeError(f"the backend {self._backend} can't reduce {dtype} by {name}; {hint}") from None
        return Reduction(name, op.factor if name == "PREMUL_SUM" else None, native)


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
