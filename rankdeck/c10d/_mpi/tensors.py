"""Tensors as MPI's buffers: memory, count and datatype; and MPI's operations for torch's reductions. Data that is moved and not reduced
uses a datatype of the item's size, so that every dtype works."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
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
    """Whether MPI gets tensors of GPUs as they are: the user says that it can. Raises RuntimeError: Open MPI says that it can't; MPICH is
    not asked."""
    if os.environ.get("RANKDECK_MPI_CUDA") != "aware":
        return False
    if "Open MPI" not in MPI.Get_library_version():
        return True
    try:
        has_cuda = ctypes.CDLL("libmpi.so.40").MPIX_Query_cuda_support()
    except (OSError, AttributeError):
        return True  # it does not say
    if not has_cuda:
        raise RuntimeError(
            "RANKDECK_MPI_CUDA=aware, but this Open MPI has no CUDA: unset the variable, and tensors of GPUs go through host memory"
        )
    return True


def unit(tensor: torch.Tensor) -> MPI.Datatype:
    """Returns the datatype of one item of a tensor that is moved and not reduced."""
    return _UNITS[tensor.element_size()]


def memory(tensor: torch.Tensor) -> MPI.buffer:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def buffer(tensor: torch.Tensor, datatype: MPI.Datatype) -> list[Any]:
    return [memory(tensor), tensor.numel(), datatype]


def moved(tensor: torch.Tensor, shares: int = 1) -> list[Any]:
    """Returns a tensor that is moved and not reduced, as MPI's buffer, with the count of one of its shares."""
    count = tensor.numel() // shares
    if count <= COUNT_LIMIT:
        return [memory(tensor), count, unit(tensor)]
    return [memory(tensor), 1, _block(tensor.element_size(), count)]


@functools.cache  # never freed: a program moves few such sizes
def _block(size: int, count: int) -> MPI.Datatype:
    """Returns a datatype of `count` items of `size` bytes, for more of them than a C int can count."""
    starts = range(0, count, COUNT_LIMIT)
    lengths = [min(COUNT_LIMIT, count - start) for start in starts]
    return _UNITS[size].Create_hindexed(lengths, [start * size for start in starts]).Commit()


def pieces(tensor: torch.Tensor, most: int) -> Sequence[torch.Tensor]:
    """Divides a contiguous tensor into pieces of at most `most` items, and no more than MPI supports in one call."""
    return _tensors.pieces(tensor, min(most, COUNT_LIMIT))
