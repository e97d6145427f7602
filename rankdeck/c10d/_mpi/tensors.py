"""Tensors as MPI's buffers: memory, count and datatype; and MPI's operations for torch's reductions. Data that is moved and not reduced
uses a datatype of the item's size, so that every dtype works."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpi4py import MPI

from rankdeck.c10d import _tensors
from rankdeck.c10d._collectives import COMPLEX, FLOATS, INTEGERS, Reductions

COUNT_LIMIT = 2**31 - 1
"""Largest number of items in one call: MPI 3 uses a C int. The same on every rank."""

_UNITS = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}
"""By size of an item in bytes."""

_DATATYPES = {
    **dict(zip((*FLOATS, *COMPLEX), (MPI.FLOAT, MPI.DOUBLE, MPI.C_FLOAT_COMPLEX, MPI.C_DOUBLE_COMPLEX))),
    **{dtype: getattr(MPI, str(dtype).removeprefix("torch.").upper() + "_T") for dtype in INTEGERS},
}
_OPERATIONS = {
    "PRODUCT": MPI.PROD,
    **{name: getattr(MPI, name) for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")},
}

reduction = Reductions("mpi", _OPERATIONS, _DATATYPES)  # MPI's operation and datatype for torch's reductions


def takes_cuda() -> bool:
    return os.environ.get("RANKDECK_MPI_CUDA") == "aware"


def unit(tensor: torch.Tensor) -> MPI.Datatype:
    """Returns the datatype of one item of a tensor that is moved and not reduced."""
    return _UNITS[tensor.element_size()]


def memory(tensor: torch.Tensor) -> MPI.buffer:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def buffer(tensor: torch.Tensor, datatype: MPI.Datatype) -> list[Any]:
    return [memory(tensor), tensor.numel(), datatype]


def start(host: torch.Tensor, call: Callable[[Any], MPI.Request]) -> MPI.Request:
    """Starts a transfer of a whole tensor. `call` gets it as MPI's buffer."""
    if host.numel() <= COUNT_LIMIT:
        return call([memory(host), host.numel(), unit(host)])
    with Block(unit(host), host.numel()) as datatype:  # MPI keeps it until the transfer has ended
        return call([memory(host), 1, datatype])


def pieces(tensor: torch.Tensor, most: int) -> Sequence[torch.Tensor]:
    """Divides a contiguous tensor into pieces of at most `most` items, and no more than MPI supports in one call."""
    return _tensors.pieces(tensor, min(most, COUNT_LIMIT))


class Block:
    """A datatype of `count` items, for more of them than a C int can count. A context manager: the datatype exists inside. `address`:
    address of the items, for MPI_BOTTOM; 0: the call passes it."""

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
