"""The collectives that the recipe allreduce measures: their buffers, the call, and the right result. Inputs repeat every three elements
and differ between ranks, so that a part that is missing, comes from another rank or stands elsewhere makes a wrong result. They hold 0, 1
and 2 only: sums are exact in every type of `DTYPES`."""

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

ADDING = 100  # ranks that put something other than zeros into a sum: bfloat16 has no odd numbers above 256


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
    """Factor from the algorithm's bandwidth to the bandwidth of the links between this number of ranks
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; sendrecv: `SendRecvGetBw` there)."""
    least: int = 1  # ranks that it needs


def _pattern(shift: int, like: torch.Tensor) -> torch.Tensor:
    """As many elements of one rank's input as `like` has, of which the first is number `shift`."""
    return _tiled([float((shift + index) % PERIOD) for index in range(PERIOD)], like)


def _sums(shift: int, like: torch.Tensor) -> torch.Tensor:
    """The same of the sum of all ranks' inputs from `_addend`."""
    ranks = range(min(ADDING, dist.get_world_size()))
    return _tiled([float(sum((shift + index + rank) % PERIOD for rank in ranks)) for index in range(PERIOD)], like)


def _addend(like: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank()
    return _pattern(rank, like) if rank < ADDING else torch.zeros_like(like)


def _tiled(values: list[float], like: torch.Tensor) -> torch.Tensor:
    count = like.numel()
    return torch.tensor(values, dtype=like.dtype, device=like.device).repeat(math.ceil(count / PERIOD))[:count]


Contents = Callable[[int, torch.Tensor], torch.Tensor]
"""Makes the contents of a part of a buffer, from the number of the part and the part itself."""


def _case(given: torch.Tensor, gets: torch.Tensor, put: Contents, due: Contents, call: Callable[[], object], *, parts: tuple[int, int] = (1, 1)) -> Case:  # fmt: skip
    """A collective on an input and an output, which may be one buffer, with this number of parts. Parts are compared one by one, for
    which less memory is needed."""

    def fill() -> None:
        gets.zero_()
        for number, part in enumerate(given.view(parts[0], -1).unbind()):
            part.copy_(put(number, part))

    def is_right() -> bool:
        return all(torch.equal(part, due(number, part)) for number, part in enumerate(gets.view(parts[1], -1).unbind()))

    size = max(tensor.numel() * tensor.element_size() for tensor in (given, gets))
    return Case(size, (given,) if gets is given else (given, gets), fill, call, is_right)


def _zeros(size: int, dtype: torch.dtype, device: torch.device, *, share: bool = False) -> torch.Tensor:
    """Zeros that fill `size` bytes, or a rank's share of them. They are written: all memory that
    was never written to may be one and the same page."""
    count = max(1, size // dtype.itemsize // (dist.get_world_size() if share else 1))
    return torch.empty(count, dtype=dtype, device=device).zero_()


def _all_reduce(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    whole = _zeros(size, dtype, device)
    return _case(
        whole, whole, lambda _, like: _addend(like), lambda _, like: _sums(0, like), lambda: dist.all_reduce(whole)
    )


def _broadcast(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    whole = _zeros(size, dtype, device)
    right = dist.get_rank() == 0
    put: Contents = lambda _, like: _pattern(1, like) if right else torch.zeros_like(like)  # noqa: E731
    return _case(whole, whole, put, lambda _, like: _pattern(1, like), lambda: dist.broadcast(whole, src=0))


def _all_gather(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    rank, world, part = dist.get_rank(), dist.get_world_size(), _zeros(size, dtype, device, share=True)
    whole = part.repeat(world)
    return _case(
        part, whole, lambda _, like: _pattern(rank + 1, like), lambda one, like: _pattern(one + 1, like), lambda: _gather(whole, part),
        parts=(1, world),
    )  # fmt: skip


def _reduce_scatter(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    rank, world, part = dist.get_rank(), dist.get_world_size(), _zeros(size, dtype, device, share=True)
    whole = part.repeat(world)
    begin = rank * part.numel()
    return _case(
        whole, part, lambda _, like: _addend(like), lambda _, like: _sums(begin, like), lambda: _scatter(part, whole)
    )


def _all_to_all(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    rank, world = dist.get_rank(), dist.get_world_size()
    sent, received = (_zeros(size, dtype, device, share=True).repeat(world) for _ in range(2))
    return _case(
        sent, received, lambda peer, like: _pattern(2 * rank + peer + 1, like), lambda peer, like: _pattern(2 * peer + rank + 1, like),
        lambda: dist.all_to_all_single(received, sent), parts=(world, world),
    )  # fmt: skip


def _sendrecv(size: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Every rank sends to the one after it, and receives from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sent, received = _zeros(size, dtype, device), _zeros(size, dtype, device)

    def call() -> None:
        moves = [dist.P2POp(dist.isend, sent, (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(moves):
            work.wait()

    before = (rank - 1) % world
    return _case(
        sent, received, lambda _, like: _pattern(rank + 1, like), lambda _, like: _pattern(before + 1, like), call
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
