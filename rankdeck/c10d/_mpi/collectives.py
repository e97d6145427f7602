"""The collectives as blocking MPI calls: contiguous tensors in memory that MPI may use, on a communicator that nobody else uses.

What decides between two ways of doing one has the same value on every rank, since MPI calls of different kinds do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from mpi4py import MPI

from rankdeck.c10d import _halves
from rankdeck.c10d._mpi import tensors as mpi_tensors
from rankdeck.c10d._mpi.job import Communicator
from rankdeck.c10d._mpi.tensors import Block, buffer, memory, pieces, unit
from rankdeck.c10d._reductions import Reduction, combine, divide, premultiply
from rankdeck.c10d._tensors import overlaps

_PIECE = 1 << 19
"""Bytes of one reduction where all ranks share memory. MPI allocates room for what the others send, and in pieces of this size it
stays in the caches: with Open MPI 4.1, 64 MiB are reduced to one of two ranks in 15 ms instead of 40, of four in 36 instead of 106. Between nodes
large pieces are better."""

_ALL_REDUCED_AT_ONCE = 1 << 24
"""Bytes up to which MPI_Allreduce, which splits a tensor itself, is fastest undivided: 16 MiB of two ranks take 2.1 ms instead of
2.9. Beyond 32 MiB glibc asks the system for that room each time: 64 MiB take 27 ms instead of 13."""

_SCATTERED_AT_ONCE = 1 << 18
"""Bytes of a rank's share up to which MPI_Reduce_scatter_block is the fastest where all ranks share memory."""

IN_PLACE: Any = MPI.IN_PLACE
"""mpi4py's stubs do not know it beside a list."""


def all_reduce(comm: Communicator, tensor: torch.Tensor, op: Reduction) -> None:
    """Reduces in place; the same bits on every rank."""
    if op.factor is not None:
        tensor.mul_(op.factor)
    if op.native is None:
        at_once = min(_halves.AT_ONCE, mpi_tensors.COUNT_LIMIT)
        _halves.all_reduce(partial(all_to_all, comm), partial(all_gather, comm), comm.size, tensor, op, at_once)
        return
    operation, datatype = op.native
    for piece in _pieces(comm, tensor, _ALL_REDUCED_AT_ONCE):
        comm.Allreduce(IN_PLACE, buffer(piece, datatype), op=operation)
    divide(tensor, op, comm.size)


def reduce(comm: Communicator, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction, root: int) -> None:
    """Reduces to one rank.

    Args:
        comm: the communicator.
        result: where the root wants it, `tensor` itself for instance; None on the others.
        tensor: what goes in; left as it is, unless it is the result.
        op: the reduction.
        root: the rank that gets it.
    """
    source = premultiply(tensor, op)
    if op.native is None:
        _halves.reduce(partial(gather, comm, root=root), comm.size, result, source, op)
        return
    operation, datatype = op.native
    if result is None:
        for piece in _pieces(comm, source):
            comm.Reduce(buffer(piece, datatype), None, op=operation, root=root)
        return
    if source is not result:
        result.copy_(source.view(result.shape))
    for piece in _pieces(comm, result):
        comm.Reduce(IN_PLACE, buffer(piece, datatype), op=operation, root=root)
    divide(result, op, comm.size)


def broadcast(comm: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Gives the root's contents to all."""
    for piece in pieces(tensor, mpi_tensors.COUNT_LIMIT):
        comm.Bcast(buffer(piece, unit(tensor)), root=root)


def all_gather(comm: Communicator, output: torch.Tensor, tensor: torch.Tensor, in_place: bool = False) -> None:
    """All ranks' tensors, one after the other.

    Args:
        comm: the communicator.
        output: world size times as large as the tensor.
        tensor: of this rank.
        in_place: whether on some rank the tensor is a part of the output; the same on every rank.
    """
    if in_place:
        count = tensor.numel()
        output.view(-1)[comm.rank * count : (comm.rank + 1) * count] = tensor.view(-1)
    with ExitStack() as stack:
        count, datatype = _block(stack, tensor)
        here = IN_PLACE if in_place else [memory(tensor), count, datatype]
        comm.Allgather(here, [memory(output), count, datatype])


def all_gather_uneven(comm: Communicator, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """All ranks' tensors, where they differ in size."""
    outputs[comm.rank].copy_(tensor.view(outputs[comm.rank].shape))
    for root, output in enumerate(outputs):
        broadcast(comm, output, root)


def reduce_scatter(comm: Communicator, output: torch.Tensor, tensor: torch.Tensor, op: Reduction) -> None:
    """Reduces, and leaves each rank its share. The output may be a part of the tensor."""
    if overlaps(output, tensor):
        apart = torch.empty_like(output)
        reduce_scatter(comm, apart, tensor, op)
        output.copy_(apart)
    elif op.native is None:
        rows = torch.empty(comm.size, output.numel(), dtype=output.dtype)
        all_to_all(comm, rows, premultiply(tensor, op))
        output.view(-1).copy_(combine(rows, op))
    elif output.numel() > _most_scattered(comm, output):
        reduce_scatter_uneven(comm, output, tensor.view(comm.size, output.numel()).unbind(), op)
    else:
        operation, datatype = op.native
        source = premultiply(tensor, op)
        count = output.numel()
        comm.Reduce_scatter_block([memory(source), count, datatype], [memory(output), count, datatype], op=operation)
        divide(output, op, comm.size)


def reduce_scatter_uneven(
    comm: Communicator, output: torch.Tensor, tensors: Sequence[torch.Tensor], op: Reduction
) -> None:
    """Reduces, and leaves each rank its share, where these differ in size."""
    for root, tensor in enumerate(tensors):
        reduce(comm, output if root == comm.rank else None, tensor, op, root)


def gather(comm: Communicator, output: torch.Tensor | None, tensor: torch.Tensor, root: int) -> None:
    """All ranks' tensors, one after the other, to one rank. `output` is None on the others."""
    with ExitStack() as stack:
        count, datatype = _block(stack, tensor)
        there = None if output is None else [memory(output), count, datatype]
        comm.Gather([memory(tensor), count, datatype], there, root=root)


def scatter(comm: Communicator, output: torch.Tensor, tensor: torch.Tensor | None, root: int) -> None:
    """Gives each rank its share of the root's tensor, which is None on the others."""
    with ExitStack() as stack:
        count, datatype = _block(stack, output)
        here = None if tensor is None else [memory(tensor), count, datatype]
        comm.Scatter(here, [memory(output), count, datatype], root=root)


def all_to_all(comm: Communicator, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Share i of rank j becomes share j of rank i; all shares are of one size."""
    if overlaps(output, tensor):
        tensor = tensor.clone()
    with ExitStack() as stack:
        count, datatype = _block(stack, tensor, comm.size)
        comm.Alltoall([memory(tensor), count, datatype], [memory(output), count, datatype])


def all_to_all_uneven(comm: Communicator, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Tensor i of rank j becomes output j of rank i, whatever their sizes. No output overlaps a tensor."""
    with ExitStack() as stack:

        def addressed(pieces: Sequence[torch.Tensor]) -> Any:
            types = [stack.enter_context(Block(unit(one), one.numel(), one.data_ptr())) for one in pieces]
            return [MPI.BOTTOM, [1] * len(types), [0] * len(types), types]

        comm.Alltoallw(addressed(tensors), addressed(outputs))


def _block(stack: ExitStack, tensor: torch.Tensor, shares: int = 1) -> tuple[int, MPI.Datatype]:
    """Count and datatype of a tensor, or of one of its shares."""
    count = tensor.numel() // shares
    if count <= mpi_tensors.COUNT_LIMIT:
        return count, unit(tensor)
    return 1, stack.enter_context(Block(unit(tensor), count))


def _pieces(comm: Communicator, tensor: torch.Tensor, at_once: int = _PIECE) -> Sequence[torch.Tensor]:
    """What to reduce at a time. `at_once`: bytes of a tensor that is not cut."""
    in_caches = comm.on_one_node and tensor.nbytes > at_once
    return pieces(tensor, _PIECE // tensor.element_size() if in_caches else mpi_tensors.COUNT_LIMIT)


def _most_scattered(comm: Communicator, share: torch.Tensor) -> int:
    """The most items of a share that MPI_Reduce_scatter_block is used for."""
    limit = mpi_tensors.COUNT_LIMIT
    return min(limit, _SCATTERED_AT_ONCE // share.element_size()) if comm.on_one_node else limit
