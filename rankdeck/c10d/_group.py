"""A `torch.distributed.ProcessGroup` over a library: each method of torch becomes an operation on memory. Each method checks its
arguments in the caller's thread, so that a mistake raises immediately, and copies what the library can't read or write in place (tensors
that are not contiguous, or on a GPU). `_operations` runs the operations."""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from rankdeck._torch_compat import c10d_library
from rankdeck.c10d._agreement import SharedError
from rankdeck.c10d._arguments import check_rank, check_share, cut, deal, describe, joined, only, operation, sizes_of
from rankdeck.c10d._group_base import GroupBase, nothing
from rankdeck.c10d._tensors import Staged, Tensors, check_writable, overlaps, readable
from rankdeck.c10d._work import Together, Votes, Work

torch_options = c10d_library()


class ProcessGroup(GroupBase):
    """What `torch.distributed.init_process_group` and `new_group` make. A backend's subclass adds how to send, to receive, and to find
    out which ranks are missing."""

    @operation("all_reduce", torch_options.AllreduceOptions, 1, "op", "timeout")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces one tensor over all ranks in place, by `opts.reduceOp`."""
        return self._all_reduce([only(tensors)], opts)

    @operation("all_reduce", torch_options.AllreduceCoalescedOptions, 1)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: Tensors, opts: Any) -> Work:
        if not tensors:
            raise ValueError("needs a tensor")
        targets, kind = self._in_place(tensors), opts.reduceOp
        ops = [self._reduction(kind, target.tensor.dtype) for target in targets]

        def action(votes: Votes) -> None:
            for target, op in zip(targets, ops):
                self._collectives.all_reduce(target.host, op)

        return self._submit(f"all_reduce({describe(tensors)}, {ops[0].name})", action, tensors, opts, targets)

    @operation("reduce", torch_options.ReduceOptions, 1, "root", "op", "timeout")
    def reduce(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Reduces one tensor to rank `opts.rootRank`, in place there. Tensors of other ranks stay unchanged."""
        tensor, root = only(tensors), check_rank(opts.rootRank, self._world)
        op, (staged,) = self._reduction(opts.reduceOp, tensor.dtype), self._in_place([tensor])
        targets = [staged] if self._rank == root else []

        def action(votes: Votes) -> None:
            self._collectives.reduce(staged.host if targets else None, staged.host, op, root)

        return self._submit(f"reduce({describe(tensors)}, {op.name}, to rank {root})", action, tensors, opts, targets)

    @operation("broadcast", torch_options.BroadcastOptions, 1, "root", "timeout")
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Sends the tensor of rank `opts.rootRank` to all."""
        tensor, root = only(tensors), check_rank(opts.rootRank, self._world)
        targets = [] if self._rank == root else [self._writable(tensor)]
        host = targets[0].host if targets else self._readable(tensor).host

        def action(votes: Votes) -> None:
            self._collectives.broadcast(host, root)

        return self._submit(f"broadcast({describe(tensors)}, from rank {root})", action, tensors, opts, targets)

    @operation("all_gather", torch_options.AllgatherOptions, 2, "timeout")
    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Gathers one tensor from each rank on all of them. Sizes may differ if every rank knows them."""
        tensor, outputs = only(inputs), only(output_lists)
        sizes = self._sizes(outputs, tensor)
        (source,), targets = self._sources([tensor]), self._targets(outputs)

        def action(votes: Votes) -> None:
            if len(set(sizes)) == 1:
                gathered = torch.empty(self._world, sizes[0], dtype=tensor.dtype)
                self._collectives.all_gather(gathered, source)
                deal(gathered, targets)
            else:
                self._collectives.all_gather_uneven([target.host for target in targets], source)

        return self._submit(f"all_gather({sizes} x {tensor.dtype})", action, outputs, opts, targets)

    @operation("all_gather", torch_options.AllgatherOptions, 2, wraps=False)
    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Together:
        """Gathers several tensors; output_lists[rank][i] receives that rank's tensor i."""
        for outputs in output_lists:
            if len(outputs) != len(inputs):
                raise ValueError(f"a list of {len(outputs)} outputs does not fit {len(inputs)} inputs")
        self._operations.begin_together()
        for index, tensor in enumerate(inputs):
            self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts)
        return self._operations.end_together()

    @operation("all_gather_single", torch_options.AllgatherOptions, 2, "timeout", wraps=False)
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:  # noqa: A002 - torch's name
        """Gathers one tensor from each rank on all of them, one after the other in the output."""
        return self._all_gather_single([output], [input], opts)

    @operation("all_gather_single", torch_options.AllgatherOptions, 2, wraps=False)
    def all_gather_single_coalesced(self, output_lists: Tensors, input_list: Tensors, opts: Any = None) -> Work:
        return self._all_gather_single(output_lists, input_list, opts)

    def _all_gather_single(self, output_lists: Tensors, input_list: Tensors, opts: Any) -> Work:
        targets, sources = self._pairs(output_lists, input_list, input_is_share=True)

        def action(votes: Votes) -> None:
            for target, source in zip(targets, sources):
                self._collectives.all_gather(target.host, source, bool(votes.largest))

        in_place = any(overlaps(target.host, source) for target, source in zip(targets, sources))
        what = f"all_gather_single({describe(input_list)})"
        return self._submit(what, action, output_lists, opts, targets, int(in_place))

    @operation("reduce_scatter", torch_options.ReduceScatterOptions, 2, "op", "timeout")
    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces a list of tensors over all ranks; rank i keeps the result of tensor i. Sizes may differ."""
        output, tensors = only(outputs), only(input_lists)
        sizes = self._sizes(tensors, output)
        op = self._reduction(opts.reduceOp, output.dtype)
        (target,), sources = self._targets(outputs), self._sources(tensors)

        def action(votes: Votes) -> None:
            if len(set(sizes)) == 1:
                self._collectives.reduce_scatter(target.host, joined(sources), op)
            else:
                self._collectives.reduce_scatter_uneven(target.host, sources, op)

        return self._submit(f"reduce_scatter({sizes} x {output.dtype}, {op.name})", action, outputs, opts, [target])

    @operation("reduce_scatter_single", torch_options.ReduceScatterOptions, 2, "op", "timeout", wraps=False)
    def reduce_scatter_single(self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any = None) -> Work:
        """Reduces a tensor over all ranks; rank i keeps share i of the result."""
        return self._reduce_scatter_single([outputTensor], [inputTensor], opts)

    @operation("reduce_scatter_single", torch_options.ReduceScatterOptions, 2, wraps=False)
    def reduce_scatter_single_coalesced(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any = None) -> Work:
        return self._reduce_scatter_single(outputTensors, inputTensors, opts)

    def _reduce_scatter_single(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any) -> Work:
        targets, sources = self._pairs(outputTensors, inputTensors, input_is_share=False)
        kind = opts.reduceOp
        ops = [self._reduction(kind, source.dtype) for source in sources]

        def action(votes: Votes) -> None:
            for target, source, op in zip(targets, sources, ops):
                self._collectives.reduce_scatter(target.host, source, op)

        what = f"reduce_scatter_single({describe(outputTensors)}, {ops[0].name if ops else ''})"
        return self._submit(what, action, outputTensors, opts, targets)

    @operation("all_to_all_single", torch_options.AllToAllOptions, 4, "timeout", wraps=False)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Sends part i of the tensor to rank i, which stores it at this rank's place in its output. `output`, `tensor`: divided along
        their first dimension. `output_splits`, `input_splits`: lengths of the parts; empty: equal parts. `opts`: timeout and whether the
        caller waits."""
        if output.dtype != tensor.dtype:
            raise ValueError(f"the output is {output.dtype}, and the tensor {tensor.dtype}")
        (target,), (source,) = self._targets([output]), self._sources([tensor])
        incoming, outgoing = cut(output, output_splits, self._world), cut(tensor, input_splits, self._world)

        def action(votes: Votes) -> None:
            given = source.clone() if overlaps(target.host, source) else source
            if votes.smallest and votes.smallest == votes.largest:
                self._collectives.all_to_all(target.host, given)
            else:
                self._check_sizes(incoming, outgoing)
                parts = target.host.view(-1).split_with_sizes(incoming), given.view(-1).split_with_sizes(outgoing)
                self._collectives.all_to_all_uneven(*parts)

        vote = incoming[0] + 1 if len({*incoming, *outgoing}) == 1 else 0  # 0: sizes differ
        return self._submit(f"all_to_all({tensor.dtype})", action, [output], opts, [target], vote)

    @operation("all_to_all", torch_options.AllToAllOptions, 2, "timeout", wraps=False)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Sends tensor i to rank i, which receives it in its output number of this rank."""
        for name, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self._world or any(one.dtype != inputs[0].dtype for one in tensors):
                raise ValueError(f"needs {self._world} {name}, one for each rank and all of one dtype")
        targets, sources = self._targets(outputs), self._sources(inputs)

        def action(votes: Votes) -> None:
            self._check_sizes([one.host.numel() for one in targets], [one.numel() for one in sources])
            overlap = any(overlaps(target.host, source) for target in targets for source in sources)
            given = [source.clone() for source in sources] if overlap else sources
            self._collectives.all_to_all_uneven([target.host for target in targets], given)

        return self._submit(f"all_to_all({inputs[0].dtype})", action, outputs, opts, targets)

    @operation("gather", torch_options.GatherOptions, 2, "root", "timeout")
    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Gathers one tensor from each rank on rank `opts.rootRank`; on other ranks, `output_lists` is empty."""
        tensor, root = only(inputs), check_rank(opts.rootRank, self._world)
        outputs: Tensors = only(output_lists) if self._rank == root else []
        if self._rank == root:
            self._sizes(outputs, tensor, equal=True)
        (source,), targets = self._sources([tensor]), self._targets(outputs)

        def action(votes: Votes) -> None:
            gathered = torch.empty(self._world, source.numel(), dtype=source.dtype) if targets else None
            self._collectives.gather(gathered, source, root)
            if gathered is not None:
                deal(gathered, targets)

        return self._submit(f"gather({describe(inputs)}, to rank {root})", action, outputs, opts, targets)

    @operation("gather_single")
    def gather_single(self, output: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers one tensor from each rank on rank `opts.rootRank`, one after the other in the output."""
        root = check_rank(opts.rootRank, self._world)
        outputs = [output] if output is not None and self._rank == root else []
        targets, _ = self._pairs(outputs, [tensor] if self._rank == root else [], input_is_share=True)
        (source,) = self._sources([tensor])

        def action(votes: Votes) -> None:
            self._collectives.gather(targets[0].host if targets else None, source, root)

        return self._submit(f"gather_single({describe([tensor])}, to rank {root})", action, outputs, opts, targets)

    @operation("scatter", torch_options.ScatterOptions, 2, "root", "timeout")
    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:  # type: ignore[override]
        """Sends tensor i of rank `opts.rootRank` to rank i; on other ranks, `input_lists` is empty."""
        output, root = only(outputs), check_rank(opts.rootRank, self._world)
        tensors: Tensors = only(input_lists) if self._rank == root else []
        if self._rank == root:
            self._sizes(tensors, output, equal=True)
        (target,), sources = self._targets(outputs), self._sources(tensors)

        def action(votes: Votes) -> None:
            self._collectives.scatter(target.host, joined(sources) if sources else None, root)

        return self._submit(f"scatter({describe(outputs)}, from rank {root})", action, outputs, opts, [target])

    @operation("barrier", torch_options.BarrierOptions, 0, "timeout")
    def barrier(self, opts: Any = None) -> Work:
        """Waits until all ranks call this."""
        return self._submit("barrier()", nothing, [], opts)

    # names up to torch 2.12

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _in_place(self, tensors: Tensors) -> list[Staged]:
        """Returns memory of tensors that are read and then written. A tensor that occurs twice is read twice."""
        found: list[Staged] = []
        for tensor in tensors:
            staged = readable(tensor, self._takes_cuda)
            if staged.host is not staged.tensor:
                check_writable(staged.tensor)
            if found and any(staged.tensor is one.tensor for one in found):
                staged = staged._replace(host=staged.host.clone())
            found.append(staged)
        return found

    def _check_sizes(self, incoming: Sequence[int], outgoing: Sequence[int]) -> None:
        """Raises SharedError on all ranks if a rank sends another number of elements than its receiver expects. A collective: the ranks add
        up what they send less what they expect, each number times the weight of its pair. If all fit, the sum is 0."""
        to, come = self._weights
        balance = sum(map(operator.mul, to, outgoing)) - sum(map(operator.mul, come, incoming))
        total = torch.tensor([balance % _MODULUS])
        self._collectives.all_reduce(total, self._reduction(_SUM, total.dtype))
        if int(total) % _MODULUS:
            raise SharedError(self._misfit(incoming, outgoing))

    @functools.cached_property
    def _weights(self) -> tuple[list[int], list[int]]:
        """Odd numbers without a pattern, one for each pair of ranks: of this rank as the sender, and as the receiver."""
        rank, world = self._rank, self._world
        pairs = [(rank, other) for other in range(world)], [(other, rank) for other in range(world)]
        to, come = ([zlib.crc32(repr(pair).encode()) | 1 for pair in side] for side in pairs)
        return to, come

    def _misfit(self, incoming: Sequence[int], outgoing: Sequence[int]) -> str:
        """Finds the first pair of ranks whose sizes do not fit. A collective."""
        announced = torch.empty(self._world, dtype=torch.int64)
        self._collectives.all_to_all(announced, torch.tensor(outgoing))
        wrong = [sender for sender, size in enumerate(announced.tolist()) if size != incoming[sender]]
        found = torch.tensor([wrong[0] * self._world + self._rank if wrong else -1])
        self._collectives.all_reduce(found, self._reduction(_LARGEST, found.dtype))
        sender, receiver = divmod(int(found), self._world)
        return f"rank {sender} does not send as many elements to rank {receiver} as rank {receiver} expects"

    def _sizes(self, tensors: Tensors, mine: torch.Tensor, equal: bool = False) -> list[int]:
        return sizes_of(tensors, mine, self._rank, self._world, equal)

    def _pairs(
        self, outputs: Tensors, inputs: Tensors, input_is_share: bool
    ) -> tuple[list[Staged], list[torch.Tensor]]:
        """Returns memory of outputs and inputs. Raises ValueError if sizes do not match the group."""
        if len(outputs) != len(inputs):
            raise ValueError(f"{len(outputs)} outputs do not fit {len(inputs)} inputs")
        for output, tensor in zip(outputs, inputs):
            check_share(output, tensor, self._world, input_is_share)
        return self._targets(outputs), self._sources(inputs)

    def _targets(self, outputs: Tensors) -> list[Staged]:
        return [self._writable(output) for output in outputs]

    def _sources(self, inputs: Tensors) -> list[torch.Tensor]:
        return [self._readable(tensor).host for tensor in inputs]


_SUM, _LARGEST = dist.ReduceOp(dist.ReduceOp.SUM), dist.ReduceOp(dist.ReduceOp.MAX)

_MODULUS = 1 << 40  # of sums over all ranks, so that they fit in 64 bits
