"""A `torch.distributed.ProcessGroup` over a library: each method of torch becomes an operation on memory. Each method checks its
arguments in the caller's thread, so that a mistake raises immediately, and copies what the library can't read or write in place (tensors
that are not contiguous, or on a GPU). `_operations` runs the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from rankdeck._torch_compat import c10d_library
from rankdeck.c10d._agreement import SharedError
from rankdeck.c10d._arguments import check_rank, check_share, cut, deal, describe, joined, only, overloaded, sizes_of
from rankdeck.c10d._group_base import GroupBase
from rankdeck.c10d._tensors import Staged, Tensors, check_writable, overlaps
from rankdeck.c10d._work import Together, Votes, Work

torch_options = c10d_library()


class ProcessGroup(GroupBase):
    """What `torch.distributed.init_process_group` and `new_group` make. A backend's subclass adds how to send, to receive, and to find
    out which ranks are missing."""

    @overloaded(torch_options.AllreduceOptions, 1, "op", "timeout")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces one tensor over all ranks in place, by `opts.reduceOp`."""
        return self.allreduce_coalesced([only(tensors)], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduces several tensors at once."""
        opts = opts or dist.AllreduceOptions()
        kind = opts.reduceOp
        parts = [(staged, self._reduction(kind, staged.tensor.dtype)) for staged in self._in_place(tensors)]

        def action(votes: Votes) -> None:
            for staged, op in parts:
                self._collectives.all_reduce(staged.host, op)
                staged.give_back()

        names = {op.name for _, op in parts}
        return self._submit(f"all_reduce({describe(tensors)}, {', '.join(names)})", action, tensors, opts)

    @overloaded(torch_options.ReduceOptions, 1, "root", "op", "timeout")
    def reduce(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Reduces one tensor to rank `opts.rootRank`, in place there. Tensors of other ranks stay unchanged."""
        tensor, root = only(tensors), check_rank("reduce", opts.rootRank, self.size())
        op, staged = self._reduction(opts.reduceOp, tensor.dtype), self._in_place([tensor])[0]

        def action(votes: Votes) -> None:
            self._collectives.reduce(staged.host if self.rank() == root else None, staged.host, op, root)
            if self.rank() == root:
                staged.give_back()

        return self._submit(f"reduce({describe(tensors)}, {op.name}, to rank {root})", action, tensors, opts)

    @overloaded(torch_options.BroadcastOptions, 1, "root", "timeout")
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Sends the tensor of rank `opts.rootRank` to all."""
        tensor, root = only(tensors), check_rank("broadcast", opts.rootRank, self.size())
        mine = self.rank() == root
        staged = self._readable(tensor) if mine else self._writable(tensor)

        def action(votes: Votes) -> None:
            self._collectives.broadcast(staged.host, root)
            if not mine:
                staged.give_back()

        return self._submit(f"broadcast({describe(tensors)}, from rank {root})", action, tensors, opts)

    @overloaded(torch_options.AllgatherOptions, 2, "timeout")
    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Gathers one tensor from each rank on all of them. Sizes may differ if every rank knows them."""
        tensor, outputs = only(inputs), only(output_lists)
        sizes = self._sizes("all_gather", outputs, tensor)
        source, targets = self._readable(tensor).host, [self._writable(output) for output in outputs]

        def action(votes: Votes) -> None:
            if len(set(sizes)) == 1:
                gathered = torch.empty(self.size(), sizes[0], dtype=tensor.dtype)
                self._collectives.all_gather(gathered, source)
                deal(gathered, targets)
            else:
                self._collectives.all_gather_uneven([target.host for target in targets], source)
            for target in targets:
                target.give_back()

        return self._submit(f"all_gather({sizes} x {tensor.dtype})", action, outputs, opts)

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Together:
        """Gathers several tensors; output_lists[rank][i] receives that rank's tensor i."""
        self._operations.begin_together()
        for index, tensor in enumerate(inputs):
            self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts)
        return self._operations.end_together()

    @overloaded(torch_options.AllgatherOptions, 2, "timeout", wraps=False)
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:  # noqa: A002 - torch's name
        """Gathers one tensor from each rank on all of them, one after the other in the output."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, output_lists: Tensors, input_list: Tensors, opts: Any = None) -> Work:
        """Gathers several tensors at once."""
        pairs = self._pairs("all_gather", output_lists, input_list, input_is_share=True)

        def action(votes: Votes) -> None:
            for target, source in pairs:
                self._collectives.all_gather(target.host, source, bool(votes.largest))
                target.give_back()

        in_place = any(overlaps(target.host, source) for target, source in pairs)
        return self._submit(f"all_gather_single({describe(input_list)})", action, output_lists, opts, int(in_place))

    @overloaded(torch_options.ReduceScatterOptions, 2, "op", "timeout")
    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> Work:  # type: ignore[override]
        """Reduces a list of tensors over all ranks; rank i keeps the result of tensor i. Sizes may differ."""
        opts = opts or dist.ReduceScatterOptions()
        output, tensors = only(outputs), only(input_lists)
        sizes = self._sizes("reduce_scatter", tensors, output)
        op = self._reduction(opts.reduceOp, output.dtype)
        target, sources = self._writable(output), [self._readable(tensor).host for tensor in tensors]

        def action(votes: Votes) -> None:
            if len(set(sizes)) == 1:
                self._collectives.reduce_scatter(target.host, joined(sources), op)
            else:
                self._collectives.reduce_scatter_uneven(target.host, sources, op)
            target.give_back()

        return self._submit(f"reduce_scatter({sizes} x {output.dtype}, {op.name})", action, outputs, opts)

    @overloaded(torch_options.ReduceScatterOptions, 2, "op", "timeout", wraps=False)
    def reduce_scatter_single(self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any = None) -> Work:
        """Reduces a tensor over all ranks; rank i keeps share i of the result."""
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any = None) -> Work:
        """Reduces and scatters several tensors at once."""
        opts = opts or dist.ReduceScatterOptions()
        pairs = self._pairs("reduce_scatter", outputTensors, inputTensors, input_is_share=False)
        ops = [self._reduction(opts.reduceOp, tensor.dtype) for tensor in inputTensors]

        def action(votes: Votes) -> None:
            for (target, source), op in zip(pairs, ops):
                self._collectives.reduce_scatter(target.host, source, op)
                target.give_back()

        what = f"reduce_scatter_single({describe(outputTensors)}, {', '.join({op.name for op in ops})})"
        return self._submit(what, action, outputTensors, opts)

    @overloaded(torch_options.AllToAllOptions, 4, "timeout", wraps=False)
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
            raise ValueError(f"all_to_all_single: the output is {output.dtype}, and the tensor {tensor.dtype}")
        target, source = self._writable(output), self._readable(tensor).host
        incoming, outgoing = cut(output, output_splits, self.size()), cut(tensor, input_splits, self.size())

        def action(votes: Votes) -> None:
            given = source.clone() if overlaps(target.host, source) else source
            if votes.smallest:
                if votes.largest != votes.smallest:
                    raise SharedError(
                        f"a rank sends {votes.smallest - 1} elements to each rank, and another one {votes.largest - 1}"
                    )
                self._collectives.all_to_all(target.host, given)
            else:
                self._check_sizes(incoming, outgoing)
                parts = target.host.view(-1).split_with_sizes(incoming), given.view(-1).split_with_sizes(outgoing)
                self._collectives.all_to_all_uneven(*parts)
            target.give_back()

        vote = incoming[0] + 1 if len({*incoming, *outgoing}) == 1 else 0  # 0: sizes differ
        return self._submit(f"all_to_all({tensor.dtype})", action, [output], opts, vote)

    @overloaded(torch_options.AllToAllOptions, 2, "timeout", wraps=False)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Sends tensor i to rank i, which receives it in its output number of this rank."""
        for name, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self.size() or any(one.dtype != inputs[0].dtype for one in tensors):
                raise ValueError(f"all_to_all: needs {self.size()} {name}, one for each rank and all of one dtype")
        targets, sources = (
            [self._writable(output) for output in outputs],
            [self._readable(tensor).host for tensor in inputs],
        )

        def action(votes: Votes) -> None:
            self._check_sizes([one.host.numel() for one in targets], [one.numel() for one in sources])
            overlap = any(overlaps(target.host, source) for target in targets for source in sources)
            given = [source.clone() for source in sources] if overlap else sources
            self._collectives.all_to_all_uneven([target.host for target in targets], given)
            for target in targets:
                target.give_back()

        return self._submit(f"all_to_all({inputs[0].dtype})", action, outputs, opts)

    @overloaded(torch_options.GatherOptions, 2, "root", "timeout")
    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Gathers one tensor from each rank on rank `opts.rootRank`; on other ranks, `output_lists` is empty."""
        tensor, root = only(inputs), check_rank("gather", opts.rootRank, self.size())
        outputs: Tensors = only(output_lists) if self.rank() == root else []
        if outputs:
            self._sizes("gather", outputs, tensor, equal=True)
        source, targets = self._readable(tensor).host, [self._writable(output) for output in outputs]

        def action(votes: Votes) -> None:
            gathered = torch.empty(self.size(), source.numel(), dtype=source.dtype) if targets else None
            self._collectives.gather(gathered, source, root)
            if gathered is not None:
                deal(gathered, targets)
            for target in targets:
                target.give_back()

        return self._submit(f"gather({describe(inputs)}, to rank {root})", action, outputs, opts)

    def gather_single(self, output: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers one tensor from each rank on rank `opts.rootRank`, one after the other in the output."""
        root = check_rank("gather", opts.rootRank, self.size())
        outputs = [output] if output is not None and self.rank() == root else []
        pairs = self._pairs("gather", outputs, [tensor] * len(outputs), input_is_share=True)
        source = self._readable(tensor).host

        def action(votes: Votes) -> None:
            self._collectives.gather(pairs[0][0].host if pairs else None, source, root)
            for target, _ in pairs:
                target.give_back()

        return self._submit(f"gather_single({describe([tensor])}, to rank {root})", action, outputs, opts)

    @overloaded(torch_options.ScatterOptions, 2, "root", "timeout")
    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:  # type: ignore[override]
        """Sends tensor i of rank `opts.rootRank` to rank i; on other ranks, `input_lists` is empty."""
        output, root = only(outputs), check_rank("scatter", opts.rootRank, self.size())
        tensors: Tensors = only(input_lists) if self.rank() == root else []
        if tensors:
            self._sizes("scatter", tensors, output, equal=True)
        target, sources = self._writable(output), [self._readable(tensor).host for tensor in tensors]

        def action(votes: Votes) -> None:
            self._collectives.scatter(target.host, joined(sources) if sources else None, root)
            target.give_back()

        return self._submit(f"scatter({describe(outputs)}, from rank {root})", action, outputs, opts)

    @overloaded(torch_options.BarrierOptions, 0, "timeout")
    def barrier(self, opts: Any = None) -> Work:
        """Waits until all ranks call this."""
        return self._submit("barrier()", _nothing, [], opts)

    # names up to torch 2.12

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _in_place(self, tensors: Tensors) -> list[Staged]:
        """Returns memory of tensors that are read and then written. A tensor that occurs twice is read once for each time."""
        found: list[Staged] = []
        for tensor in tensors:
            check_writable(tensor)
            staged = self._readable(tensor)
            is_twice = any(staged.tensor is one.tensor for one in found)
            found.append(staged._replace(host=staged.host.clone()) if is_twice else staged)
        return found

    def _check_sizes(self, incoming: Sequence[int], outgoing: Sequence[int]) -> None:
        """Raises SharedError on all ranks if a rank sends another number of elements than its receiver expects. A collective."""
        sent, announced = torch.tensor(outgoing), torch.empty(self.size(), dtype=torch.int64)
        self._collectives.all_to_all(announced, sent)
        mine = [sender for sender, size in enumerate(announced.tolist()) if size != incoming[sender]]
        wrong = torch.tensor([mine[0] * self.size() + self.rank() + 1 if mine else 0])
        self._collectives.all_reduce(wrong, self._reduction(_LARGEST, wrong.dtype))
        if pair := int(wrong):
            sender, receiver = divmod(pair - 1, self.size())
            raise SharedError(
                f"rank {sender} sends another number of elements to rank {receiver} than rank {receiver} expects"
            )

    def _sizes(self, what: str, tensors: Tensors, mine: torch.Tensor, equal: bool = False) -> list[int]:
        return sizes_of(what, tensors, mine, self.rank(), self.size(), equal)

    def _pairs(
        self, what: str, outputs: Tensors, inputs: Tensors, input_is_share: bool
    ) -> list[tuple[Staged, torch.Tensor]]:
        """Returns memory of outputs and inputs. Raises ValueError if sizes do not match the group."""
        pairs = []
        for output, tensor in zip(outputs, inputs):
            check_share(what, output, tensor, self.size(), input_is_share)
            pairs.append((self._writable(output), self._readable(tensor).host))
        return pairs


_LARGEST = dist.ReduceOp(dist.ReduceOp.MAX)


def _nothing(votes: Votes) -> None:
    """The action of a barrier: the agreement before it is enough."""
