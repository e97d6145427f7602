"""The collectives that the recipe allreduce measures: their buffers, the call, and the right result.

Inputs repeat every three elements and differ between ranks, so that a part that is missing, comes from another rank or stands
elsewhere makes a wrong result. They hold 0, 1 and 2 only: sums are exact in every type of `DTYPES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}

PERIOD = 3

# Older torch has them by their older names only, and newer torch warns of these.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

ADDING = 100
"""Ranks that put something other than zeros into a sum: bfloat16 has no odd numbers above 256."""


class Case(NamedTuple):
    """One collective on one size, as one rank has it."""

    size: int  # bytes of the larger buffer, as nccl-tests count them
    buffers: tuple[torch.Tensor, ...]
    fill: Callable[[], None]  # fills the buffers with the input that `is_right` expects
    call: Callable[[], object]
    is_right: Callable[[], bool]


class Collective(NamedTuple):
    """How one collective is measured."""

    make: Callable[[int, torch.dtype, torch.device], Case]
    """From bytes, the type of the elements, and where they are. At least one element for each rank."""
    bus_factor: Callable[[int], float]
    """By what the algorithm's bandwidth is multiplied, for so many ranks, to be that of the links between them
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; sendrecv: `SendRecvGetBw` there)."""
    least: int = 1  # ranks that it needs


def _pattern(shift: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """`count` elements of one rank's input, of which the first is number `shift`."""
    return _tiled([float((shift + index) % PERIOD) for index in range(PERIOD)], count, like)


def _sums(shift: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """`count` elements of the sum of all ranks' inputs from `_addend`, of which the first is number `shift`."""
    ranks = range(min(ADDING, dist.get_world_size()))
    return _tiled(
        [float(sum((shift + index + rank) % PERIOD for rank in ranks)) for index in range(PERIOD)], count, like
    )


def _addend(count: int, like: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    return _pattern(rank, count, like) if rank < ADDING else torch.zeros_like(like)


def _tiled(values: list[float], count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).repeat(math.ceil(count / PERIOD))[:count]


def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that have memory of their own: what nobody has written to may all be one page."""
    return torch.empty(count, dtype=dtype, device=device).zero_()


def _all_reduce(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    count = max(1, size // dtype.itemsize)
    whole = _zeros(count, dtype, device)

    def fill() -> None:
        whole.copy_(_addend(count, whole))

    return Case(
        count * dtype.itemsize,
        (whole,),
        fill,
        lambda: dist.all_reduce(whole),
        lambda: torch.equal(whole, _sums(0, count, whole)),
    )


def _broadcast(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    count = max(1, size // dtype.itemsize)
    whole = _zeros(count, dtype, device)

    def fill() -> None:
        if dist.get_rank() == 0:
            whole.copy_(_pattern(1, count, whole))
        else:
            whole.zero_()

    return Case(
        count * dtype.itemsize,
        (whole,),
        fill,
        lambda: dist.broadcast(whole, src=0),
        lambda: torch.equal(whole, _pattern(1, count, whole)),
    )


def _all_gather(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    world = dist.get_world_size()
    share = max(1, size // dtype.itemsize // world)
    whole, part = _zeros(share * world, dtype, device), _zeros(share, dtype, device)

    def fill() -> None:
        whole.zero_()
        part.copy_(_pattern(dist.get_rank() + 1, share, part))

    def is_right() -> bool:
        return all(
            torch.equal(piece, _pattern(rank + 1, share, piece))
            for rank, piece in enumerate(whole.view(-1, share).unbind())
        )

    return Case(
        share * world * dtype.itemsize,
        (whole, part),
        fill,
        lambda: _gather(whole, part),
        is_right,
    )


def _reduce_scatter(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    rank, world = dist.get_rank(), dist.get_world_size()
    share = max(1, size // dtype.itemsize // world)
    whole, part = _zeros(share * world, dtype, device), _zeros(share, dtype, device)

    def fill() -> None:
        whole.copy_(_addend(share * world, whole))
        part.zero_()

    return Case(
        share * world * dtype.itemsize,
        (whole, part),
        fill,
        lambda: _scatter(part, whole),
        lambda: torch.equal(part, _sums(rank * share, share, part)),
    )


def _all_to_all(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    rank, world = dist.get_rank(), dist.get_world_size()
    share = max(1, size // dtype.itemsize // world)
    sent, received = _zeros(share * world, dtype, device), _zeros(share * world, dtype, device)

    def fill() -> None:
        received.zero_()
        for peer, piece in enumerate(sent.view(-1, share).unbind()):
            piece.copy_(_pattern(2 * rank + peer + 1, share, piece))

    def is_right() -> bool:
        return all(
            torch.equal(piece, _pattern(2 * peer + rank + 1, share, piece))
            for peer, piece in enumerate(received.view(-1, share).unbind())
        )

    return Case(
        share * world * dtype.itemsize,
        (sent, received),
        fill,
        lambda: dist.all_to_all_single(received, sent),
        is_right,
    )


def _sendrecv(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Every rank sends to the one after it, and receives from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    count = max(1, size // dtype.itemsize)
    sent, received = _zeros(count, dtype, device), _zeros(count, dtype, device)

    def fill() -> None:
        sent.copy_(_pattern(rank + 1, count, sent))
        received.zero_()

    def call() -> None:
        moves = [
            dist.P2POp(dist.isend, sent, (rank + 1) % world),
            dist.P2POp(dist.irecv, received, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()

    return Case(
        count * dtype.itemsize,
        (sent, received),
        fill,
        call,
        lambda: torch.equal(received, _pattern((rank - 1) % world + 1, count, received)),
    )


def _barrier(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    return Case(0, (), lambda: None, dist.barrier, lambda: True)


COLLECTIVES = {
    "all_reduce": Collective(_all_reduce, lambda world: 2 * (world - 1) / world),
    "all_gather": Collective(_all_gather, lambda world: (world - 1) / world),
    "reduce_scatter": Collective(_reduce_scatter, lambda world: (world - 1) / world),
    "broadcast": Collective(_broadcast, lambda world: 1.0),
    "all_to_all": Collective(_all_to_all, lambda world: (world - 1) / world),
    "sendrecv": Collective(_sendrecv, lambda world: 1.0, least=2),
    "barrier": Collective(_barrier, lambda world: 0.0),
}
