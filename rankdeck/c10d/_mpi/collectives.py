"""The collectives as blocking MPI calls, on a communicator that nothing else uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI

from rankdeck.c10d import _collectives
from rankdeck.c10d._collectives import Reduction
from rankdeck.c10d._mpi import tensors as mpi_tensors
from rankdeck.c10d._mpi.job import Communicator
from rankdeck.c10d._mpi.tensors import buffer, memory, moved, pieces, unit
from rankdeck.c10d._tensors import Tensors, overlaps

_PIECE = 1 << 19
"""Bytes of one reduction if all ranks share memory. MPI allocates memory for the data of other ranks; pieces of this size stay in the
caches. With Open MPI 4.1, reducing 64 MiB to one of two ranks takes 15 ms instead of 40, to one of four 36 ms instead of 106. Between
nodes, large pieces are faster."""

_ALL_REDUCED_AT_ONCE = 1 << 24
"""Bytes up to which MPI_Allreduce, which splits a tensor itself, is fastest undivided: 16 MiB of two ranks take 2.1 ms instead of
2.9. Beyond 32 MiB, glibc requests that memory from the system each time: 64 MiB take 27 ms instead of 13."""

_SCATTERED_AT_ONCE = 1 << 18
"""Bytes of a rank's share up to which MPI_Reduce_scatter_block is fastest if all ranks share memory."""

_TAG = 0  # of the messages of an all-to-all of different sizes

_IN_PLACE: Any = MPI.IN_PLACE  # mpi4py's stubs do not accept it in place of a list


class Collectives(_collectives.Collectives):
    reduction = mpi_tensors.reduction

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm

    @property
    def _halves_at_once(self) -> int:
        return min(_collectives.HALVES_AT_ONCE, mpi_tensors.COUNT_LIMIT)

    def _all_reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any) -> None:
        for piece in self._pieces(tensor, _ALL_REDUCED_AT_ONCE):
            self._comm.Allreduce(_IN_PLACE, buffer(piece, datatype), op=operation)

    def _reduce(self, tensor: torch.Tensor, operation: Any, datatype: Any, root: int) -> None:
        for piece in self._pieces(tensor, _PIECE):
            if self.rank == root:
                self._comm.Reduce(_IN_PLACE, buffer(piece, datatype), op=operation, root=root)
            else:
                self._comm.Reduce(buffer(piece, datatype), None, op=operation, root=root)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        for piece in pieces(tensor, mpi_tensors.COUNT_LIMIT):
            self._comm.Bcast(buffer(piece, unit(tensor)), root=root)

    def _all_gather(self, output: torch.Tensor, tensor: torch.Tensor, in_place: bool) -> None:
        self._comm.Allgather(_IN_PLACE if in_place else moved(tensor), moved(output, self.size))

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Reduction) -> None:
        limit = mpi_tensors.COUNT_LIMIT
        if self._comm.on_one_node:
            limit = min(limit, _SCATTERED_AT_ONCE // output.element_size())
        if output.numel() > limit and op.native is not None and not overlaps(output, tensor):
            self.reduce_scatter_uneven(output, tensor.view(self.size, output.numel()).unbind(), op)
        else:
            super().reduce_scatter(output, tensor, op)

    def _reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, operation: Any, datatype: Any) -> None:
        count = output.numel()
        here, there = [memory(tensor), count, datatype], [memory(output), count, datatype]
        self._comm.Reduce_scatter_block(here, there, op=operation)

    def gather(self, output: torch.Tensor | None, tensor: torch.Tensor, root: int) -> None:
        self._comm.Gather(moved(tensor), None if output is None else moved(output, self.size), root=root)

    def scatter(self, output: torch.Tensor, tensor: torch.Tensor | None, root: int) -> None:
        self._comm.Scatter(None if tensor is None else moved(tensor, self.size), moved(output), root=root)

    def _all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        self._comm.Alltoall(moved(tensor, self.size), moved(output, self.size))

    def all_to_all_uneven(self, outputs: Tensors, tensors: Tensors) -> None:
        comm = self._comm
        requests = [comm.Irecv(moved(one), rank, _TAG) for rank, one in enumerate(outputs) if one.numel()]
        requests += [comm.Isend(moved(one), rank, _TAG) for rank, one in enumerate(tensors) if one.numel()]
        MPI.Request.Waitall(requests)

    def _pieces(self, tensor: torch.Tensor, at_once: int) -> Sequence[torch.Tensor]:
        """The pieces of a tensor to reduce, one in each call. Tensors of up to `at_once` bytes are not divided."""
        if tensor.nbytes <= at_once and tensor.numel() <= mpi_tensors.COUNT_LIMIT:
            return (tensor,)
        in_caches = self._comm.on_one_node and tensor.nbytes > at_once
        return pieces(tensor, _PIECE // tensor.element_size() if in_caches else mpi_tensors.COUNT_LIMIT)
