"""What every `torch.distributed.ProcessGroup` here has in common: what torch calls, turned into operations on memory.

Each method looks at its arguments in the caller's thread, where a mistake is raised at once, and copies there what the
library can't read or write in place (tensors that are not contiguous, or on a GPU). How operations go is in `_operations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rankdeck.c10d import _tensors
from rankdeck.c10d._arguments import check_share, cut, deal, describe, joined, only, sizes_of
from rankdeck.c10d._background import name_ranks
from rankdeck.c10d._interface import Collectives, Tensors
from rankdeck.c10d._operations import Operations
from rankdeck.c10d._reductions import Reductions
from rankdeck.c10d._tensors import Staged, overlaps
from rankdeck.c10d._work import Request, Together, Work


class ProcessGroup(dist.ProcessGroup):
    """What `torch.distributed.init_process_group` and `new_group` make. A backend says in a class of its own how to send, to
    receive, and to find out who is missing.

    Args:
        rank, size: of this process in the group, and how many it has.
        team: what the collectives are called with.
        collectives: the library's.
        reduction: its reductions.
        operations: what the group has under way.
        takes_cuda: whether the library can use a GPU's memory.
    """

    NAME = ""
    """The backend's."""

    def __init__(
        self,
        rank: int,
        size: int,
        team: Any,
        collectives: Collectives,
        reduction: Reductions[Any, Any],
        operations: Operations,
        takes_cuda: bool = False,
    ) -> None:
        # The constructor with a store, which the stubs know, is not for classes written in Python.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._description = ""
        self._team, self._collectives, self._reduction = team, collectives, reduction
        self._operations = operations
        self._submit = operations.submit
        self._takes_cuda = takes_cuda

    def _send(self, host: torch.Tensor, rank: int, tag: int) -> Request:
        """Begins to send contiguous memory."""
        raise NotImplementedError

    def _receive(self, host: torch.Tensor, rank: int | None, tag: int) -> Request:
        """Begins to receive into contiguous memory, from a rank or from any."""
        raise NotImplementedError

    def _find_missing(self, seconds: float, name_all: bool) -> list[int]:
        """Waits until all ranks call this. Returns who did not come."""
        raise NotImplementedError

    # what torch asks

    def getBackendName(self) -> str:
        """The name that torch prints."""
        return self.NAME

    def getGroupName(self) -> str:
        """Of this group among all of this process."""
        return self._operations.name

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._operations.name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    setGroupName = _set_group_name
    setGroupDesc = _set_group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of operations that name none."""
        self._operations.timeout = timeout.total_seconds()

    # collectives

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces one tensor over all ranks, in place. With `opts.reduceOp`, as all reductions."""
        return self.allreduce_coalesced([only(tensors)], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduces several tensors at once."""
        opts = opts or dist.AllreduceOptions()
        kind = opts.reduceOp
        parts = [(self._readable(tensor), self._reduction(kind, tensor.dtype)) for tensor in tensors]

        def action(vote: int) -> None:
            for staged, op in parts:
                self._collectives.all_reduce(self._team, staged.host, op)
                staged.give_back()

        names = {op.name for _, op in parts}
        return self._submit(f"all_reduce({describe(tensors)}, {', '.join(names)})", action, tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Reduces one tensor to rank `opts.rootRank`, in place there; on the others it stays as it is."""
        tensor, root = only(tensors), opts.rootRank
        op, staged = self._reduction(opts.reduceOp, tensor.dtype), self._readable(tensor)

        def action(vote: int) -> None:
            self._collectives.reduce(self._team, staged.host if self.rank() == root else None, staged.host, op, root)
            if self.rank() == root:
                staged.give_back()

        return self._submit(f"reduce({describe(tensors)}, {op.name}, to rank {root})", action, tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Gives the tensor of rank `opts.rootRank` to all."""
        tensor, root = only(tensors), opts.rootRank
        mine = self.rank() == root
        staged = self._readable(tensor) if mine else self._writable(tensor)

        def action(vote: int) -> None:
            self._collectives.broadcast(self._team, staged.host, root)
            if not mine:
                staged.give_back()

        return self._submit(f"broadcast({describe(tensors)}, from rank {root})", action, tensors, opts)

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Gathers one tensor of each rank on all of them; they may differ in size if every rank knows the sizes."""
        tensor, outputs = only(inputs), only(output_lists)
        sizes = self._sizes("all_gather", outputs, tensor)
        source, targets = self._readable(tensor).host, [self._writable(output) for output in outputs]

        def action(vote: int) -> None:
            if len(set(sizes)) == 1:
                gathered = torch.empty(self.size(), sizes[0], dtype=tensor.dtype)
                self._collectives.all_gather(self._team, gathered, source)
                deal(gathered, targets)
            else:
                self._collectives.all_gather_uneven(self._team, [target.host for target in targets], source)
            for target in targets:
                target.give_back()

        return self._submit(f"all_gather({sizes} x {tensor.dtype})", action, outputs, opts)

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Together:
        """Gathers several tensors; output_lists[rank][i] becomes that rank's tensor i."""
        self._operations.begin_together()
        for index, tensor in enumerate(inputs):
            self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts)
        return self._operations.end_together()

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:  # noqa: A002 - torch's name
        """Gathers one tensor of each rank on all of them, one after the other in the output."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, output_lists: Tensors, input_list: Tensors, opts: Any = None) -> Work:
        """Gathers several tensors at once."""
        pairs = self._pairs("all_gather", output_lists, input_list, input_is_share=True)

        def action(vote: int) -> None:
            for target, source in pairs:
                self._collectives.all_gather(self._team, target.host, source, bool(vote))
                target.give_back()

        in_place = any(overlaps(target.host, source) for target, source in pairs)
        return self._submit(f"all_gather_single({describe(input_list)})", action, output_lists, opts, int(in_place))

    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces a list of tensors over all ranks; rank i keeps the result of tensor i. They may differ in size."""
        opts = opts or dist.ReduceScatterOptions()
        output, tensors = only(outputs), only(input_lists)
        sizes = self._sizes("reduce_scatter", tensors, output)
        op = self._reduction(opts.reduceOp, output.dtype)
        target, sources = self._writable(output), [self._readable(tensor).host for tensor in tensors]

        def action(vote: int) -> None:
            if len(set(sizes)) == 1:
                self._collectives.reduce_scatter(self._team, target.host, joined(sources), op)
            else:
                self._collectives.reduce_scatter_uneven(self._team, target.host, sources, op)
            target.give_back()

        return self._submit(f"reduce_scatter({sizes} x {output.dtype}, {op.name})", action, outputs, opts)

    def reduce_scatter_single(self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any = None) -> Work:
        """Reduces a tensor over all ranks; rank i keeps share i of the result."""
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any = None) -> Work:
        """Reduces and scatters several tensors at once."""
        opts = opts or dist.ReduceScatterOptions()
        pairs = self._pairs("reduce_scatter", outputTensors, inputTensors, input_is_share=False)
        ops = [self._reduction(opts.reduceOp, tensor.dtype) for tensor in inputTensors]

        def action(vote: int) -> None:
            for (target, source), op in zip(pairs, ops, strict=True):
                self._collectives.reduce_scatter(self._team, target.host, source, op)
                target.give_back()

        what = f"reduce_scatter_single({describe(outputTensors)}, {', '.join({op.name for op in ops})})"
        return self._submit(what, action, outputTensors, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Gives part i of the tensor to rank i, whose part lands at this rank's place in its output.

        Args:
            output, tensor: cut along their first dimension.
            output_splits, input_splits: the sizes of the parts; empty: equal ones.
            opts: timeout and whether the caller waits.
        """
        if output.dtype != tensor.dtype:
            raise ValueError(f"all_to_all_single: the output is {output.dtype}, and the tensor {tensor.dtype}")
        target, source = self._writable(output), self._readable(tensor).host
        incoming, outgoing = cut(output, output_splits, self.size()), cut(tensor, input_splits, self.size())

        def action(vote: int) -> None:
            given = source.clone() if overlaps(target.host, source) else source
            if vote:
                parts = target.host.view(-1).split_with_sizes(incoming), given.view(-1).split_with_sizes(outgoing)
                self._collectives.all_to_all_uneven(self._team, *parts)
            else:
                self._collectives.all_to_all(self._team, target.host, given)
            target.give_back()

        uneven = len({*incoming, *outgoing}) > 1
        return self._submit(f"all_to_all({tensor.dtype})", action, [output], opts, int(uneven))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Gives tensor i to rank i, which finds it in its output number of this rank."""
        for name, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self.size() or any(one.dtype != inputs[0].dtype for one in tensors):
                raise ValueError(f"all_to_all: needs {self.size()} {name}, one for each rank and all of one dtype")
        targets, sources = (
            [self._writable(output) for output in outputs],
            [self._readable(tensor).host for tensor in inputs],
        )

        def action(vote: int) -> None:
            overlap = any(overlaps(target.host, source) for target in targets for source in sources)
            given = [source.clone() for source in sources] if overlap else sources
            self._collectives.all_to_all_uneven(self._team, [target.host for target in targets], given)
            for target in targets:
                target.give_back()

        return self._submit(f"all_to_all({inputs[0].dtype})", action, outputs, opts, 1)

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Gathers one tensor of each rank on rank `opts.rootRank`; elsewhere `output_lists` is empty."""
        tensor, root = only(inputs), opts.rootRank
        outputs: Tensors = only(output_lists) if self.rank() == root else []
        if outputs:
            self._sizes("gather", outputs, tensor, equal=True)
        source, targets = self._readable(tensor).host, [self._writable(output) for output in outputs]

        def action(vote: int) -> None:
            gathered = torch.empty(self.size(), source.numel(), dtype=source.dtype) if targets else None
            self._collectives.gather(self._team, gathered, source, root)
            if gathered is not None:
                deal(gathered, targets)
            for target in targets:
                target.give_back()

        return self._submit(f"gather({describe(inputs)}, to rank {root})", action, outputs, opts)

    def gather_single(self, output: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers one tensor of each rank on rank `opts.rootRank`, one after the other in the output."""
        root = opts.rootRank
        outputs = [output] if output is not None and self.rank() == root else []
        pairs = self._pairs("gather", outputs, [tensor] * len(outputs), input_is_share=True)
        source = self._readable(tensor).host

        def action(vote: int) -> None:
            self._collectives.gather(self._team, pairs[0][0].host if pairs else None, source, root)
            for target, _ in pairs:
                target.give_back()

        return self._submit(f"gather_single({describe([tensor])}, to rank {root})", action, outputs, opts)

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:  # type: ignore[override]
        """Gives tensor i of rank `opts.rootRank` to rank i; elsewhere `input_lists` is empty."""
        output, root = only(outputs), opts.rootRank
        tensors: Tensors = only(input_lists) if self.rank() == root else []
        if tensors:
            self._sizes("scatter", tensors, output, equal=True)
        target, sources = self._writable(output), [self._readable(tensor).host for tensor in tensors]

        def action(vote: int) -> None:
            self._collectives.scatter(self._team, target.host, joined(sources) if sources else None, root)
            target.give_back()

        return self._submit(f"scatter({describe(outputs)}, from rank {root})", action, outputs, opts)

    def barrier(self, opts: Any = None) -> Work:
        """Waits until all ranks are here."""
        return self._submit("barrier()", _nothing, [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks are here, and finds out who is not.

        Args:
            timeout: how long; None: the group's.
            wait_all_ranks: name all ranks that are missing, not only the first.

        Raises:
            torch.distributed.DistBackendError: ranks are missing. Nothing can be begun in the group after that.
        """
        self._operations.check_usable("monitored_barrier()")
        limit = timeout.total_seconds() if timeout else self._operations.timeout
        missing = self._find_missing(limit, wait_all_ranks)
        if missing:
            raise self._operations.fail(f"monitored_barrier(): {name_ranks(missing)} did not come within {limit:g} s")

    # the names of torch up to 2.12

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    # point to point

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank of the group."""
        host = self._readable(only(tensors)).host
        what = f"send({describe(tensors)}, to rank {dstRank}, tag {tag})"
        return self._operations.transfer(what, None, host, lambda: self._send(host, dstRank, tag))

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> Work:
        """Receives a tensor from a rank of the group."""
        return self._receive_from(tensors, srcRank, tag, f"rank {srcRank}")

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receives a tensor from whichever rank sends first; the work's `_source_rank` says which."""
        return self._receive_from(tensors, None, tag, "any rank")

    recvAnysource = recv_anysource

    def _receive_from(self, tensors: Tensors, rank: int | None, tag: int, whom: str) -> Work:
        target = self._writable(only(tensors))
        what = f"recv({describe(tensors)}, from {whom}, tag {tag})"
        return self._operations.transfer(what, target, target.host, lambda: self._receive(target.host, rank, tag))

    # several operations as one

    def _start_coalescing(self, device: torch.device) -> None:
        self._operations.begin_together()

    def _end_coalescing(self, device: torch.device) -> Together:
        return self._operations.end_together()

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # the end

    def shutdown(self) -> None:
        """Leaves the group, once all that was begun on this rank is done."""
        self._operations.shutdown()

    def abort(self) -> None:
        """Ends all that is under way with an error, without asking the other ranks."""
        self._operations.abort()

    # arguments

    def _readable(self, tensor: torch.Tensor) -> Staged:
        return _tensors.readable(tensor, self._takes_cuda)

    def _writable(self, tensor: torch.Tensor) -> Staged:
        return _tensors.writable(tensor, self._takes_cuda)

    def _sizes(self, what: str, tensors: Tensors, mine: torch.Tensor, equal: bool = False) -> list[int]:
        return sizes_of(what, tensors, mine, self.rank(), self.size(), equal)

    def _pairs(
        self, what: str, outputs: Tensors, inputs: Tensors, input_is_share: bool
    ) -> list[tuple[Staged, torch.Tensor]]:
        """Outputs and inputs as memory. Raises ValueError where one is not world size times the other."""
        pairs = []
        for output, tensor in zip(outputs, inputs, strict=True):
            check_share(what, output, tensor, self.size(), input_is_share)
            pairs.append((self._writable(output), self._readable(tensor).host))
        return pairs


def _nothing(vote: int) -> None:
    """A barrier has happened when all ranks agree on it."""
