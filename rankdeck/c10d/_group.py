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
from rankdeck.c10d._arguments import check_rank, check_share, cut, deal, describe, joined, only, operation, sizes_of
from rankdeck.c10d._group_base import GroupBase
from rankdeck.c10d._tensors import Staged, Tensors, check_writable, overlaps
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
        """Reduces several tensors at once."""
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: Tensors, opts: Any) -> Work:
        if not tensors:
            raise ValueError("needs a tensor")
        targets = self._in_place(tensors)
        ops = [self._reduction(opts.reduceOp, target.tensor.dtype) for target in targets]

        def action(votes: Votes) -> None:
            for target, op in zip(targets, ops):
                self._collectives.all_reduce(target.host, op)

        what = f"all_reduce({describe(tensors)}, {', '.join({op.name for op in ops})})"
        return self._submit(what, action, tensors, opts, targets)

    @operation("reduce", torch_options.ReduceOptions, 1, "root", "op", "timeout")
    def reduce(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Reduces one tensor to rank `opts.rootRank`, in place there. Tensors of other ranks stay unchanged."""
        tensor, root = only(tensors), check_rank(opts.rootRank, self.size())
        op, (staged,) = self._reduction(opts.reduceOp, tensor.dtype), self._in_place([tensor])
        targets = [staged] if self.rank() == root else []

        def action(votes: Votes) -> None:
            self._collectives.reduce(staged.host if targets else None, staged.host, op, root)

        return self._submit(f"reduce({describe(tensors)}, {op.name}, to rank {root})", action, tensors, opts, targets)

    @operation("broadcast", torch_options.BroadcastOptions, 1, "root", "timeout")
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:  # type: ignore[override]
        """Sends the tensor of rank `opts.rootRank` to all."""
        tensor, root = only(tensors), check_rank(opts.rootRank, self.size())
        targets = [] if self.rank() == root else [self._writable(tensor)]
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
                gathered = torch.empty(self.size(), sizes[0], dtype=tensor.dtype)
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
        return self.all_gather_single_coalesced([output], [input], opts)

    @operation("all_gather_single", torch_options.AllgatherOptions, 2, wraps=False)
    def all_gather_single_coalesced(self, output_lists: Tensors, input_list: Tensors, opts: Any = None) -> Work:
        """Gathers several tensors at once."""
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
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    @operation("reduce_scatter_single", torch_options.ReduceScatterOptions, 2, wraps=False)
    def reduce_scatter_single_coalesced(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any = None) -> Work:
        """Reduces and scatters several tensors at once."""
        targets, sources = self._pairs(outputTensors, inputTensors, input_is_share=False)
        ops = [self._reduction(opts.reduceOp, source.dtype) for source in sources]

        def action(votes: Votes) -> None:
            for target, source, op in zip(targets, sources, ops):
                self._collectives.reduce_scatter(target.host, source, op)

        what = f"reduce_scatter_single({describe(outputTensors)}, {', '.join({op.name for op in ops})})"
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
        incoming, outgoing = cut(output, output_splits, self.size()), cut(tensor, input_splits, self.size())

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
            if len(tensors) != self.size() or any(one.dtype != inputs[0].dtype for one in tensors):
                raise ValueError(f"needs {self.size()} {name}, one for each rank and all of one dtype")
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
        tensor, root = only(inputs), check_rank(opts.rootRank, self.size())
        outputs: Tensors = only(output_lists) if self.rank() == root else []
        if self.rank() == root:
            self._sizes(outputs, tensor, equal=True)
        (source,), targets = self._sources([tensor]), self._targets(outputs)

        def action(votes: Votes) -> None:
            gathered = torch.empty(self.size(), source.numel(), dtype=source.dtype) if targets else None
            self._collectives.gather(gathered, source, root)
            if gathered is not None:
                deal(gathered, targets)

        return self._submit(f"gather({describe(inputs)}, to rank {root})", action, outputs, opts, targets)

    @operation("gather_single")
    def gather_single(self, output: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> Work:
        """Gathers one tensor from each rank on rank `opts.rootRank`, one after the other in the output."""
        root = check_rank(opts.rootRank, self.size())
        outputs = [output] if output is not None and self.rank() == root else []
        targets, _ = self._pairs(outputs, [tensor] if self.rank() == root else [], input_is_share=True)
        (source,) = self._sources([tensor])

        def action(votes: Votes) -> None:
            self._collectives.gather(targets[0].host if targets else None, source, root)

        return self._submit(f"gather_single({describe([tensor])}, to rank {root})", action, outputs, opts, targets)

    @operation("scatter", torch_options.ScatterOptions, 2, "root", "timeout")
    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:  # type: ignore[override]
        """Sends tensor i of rank `opts.rootRank` to rank i; on other ranks, `input_lists` is empty."""
        output, root = only(outputs), check_rank(opts.rootRank, self.size())
        tensors: Tensors = only(input_lists) if self.rank() == root else []
        if self.rank() == root:
            self._sizes(tensors, output, equal=True)
        (target,), sources = self._targets(outputs), self._sources(tensors)

        def action(votes: Votes) -> None:
            self._collectives.scatter(target.host, joined(sources) if sources else None, root)

        return self._submit(f"scatter({describe(outputs)}, from rank {root})", action, outputs, opts, [target])

    @operation("barrier", torch_options.BarrierOptions, 0, "timeout")
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
            staged = self._readable(tensor)
            check_writable(staged.tensor)
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
                f"rank {sender} does not send as many elements to rank {receiver} as rank {receiver} expects"
            )

    def _sizes(self, tensors: Tensors, mine: torch.Tensor, equal: bool = False) -> list[int]:
        return sizes_of(tensors, mine, self.rank(), self.size(), equal)

    def _pairs(
        self, outputs: Tensors, inputs: Tensors, input_is_share: bool
    ) -> tuple[list[Staged], list[torch.Tensor]]:
        """Returns memory of outputs and inputs. Raises ValueError if sizes do not match the group."""
        if len(outputs) != len(inputs):
            raise ValueError(f"{len(outputs)} outputs do not fit {len(inputs)} inputs")
        for output, tensor in zip(outputs, inputs):
            check_share(output, tensor, self.size(), input_is_share)
        return self._targets(outputs), self._sources(inputs)

    def _targets(self, outputs: Tensors) -> list[Staged]:
        return [self._writable(output) for output in outputs]

    def _sources(self, inputs: Tensors) -> list[torch.Tensor]:
        return [self._readable(tensor).host for tensor in inputs]


_LARGEST = dist.ReduceOp(dist.ReduceOp.MAX)


def _nothing(votes: Votes) -> None:
    """The action of a barrier: the agreement before it is enough."""
