"""Checks of the arguments of a collective. A mistake raises in the caller's thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from rankdeck.c10d._tensors import Staged, Tensors

Method = TypeVar("Method", bound=Callable[..., Any])

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Fields of torch's options by the names of its short forms."""


def only(items: Sequence[Any]) -> Any:
    """Returns the only item. Raises ValueError if there is not exactly one."""
    if len(items) != 1:
        raise ValueError(f"needs one tensor, or one list of tensors, but got {len(items)}")
    return items[0]


def check_rank(what: str, rank: int, world: int) -> int:
    """Returns a rank. Raises ValueError if the group has no such rank."""
    if not 0 <= rank < world:
        raise ValueError(f"{what}: there is no rank {rank} in this group of {world} ranks")
    return rank


def overloaded(options: type, leading: int, *words: str, wraps: bool = True) -> Callable[[Method], Method]:
    """Lets a method take torch's short forms too: a tensor in place of a list, and values in place of options.

    Args:
        options: torch's class of the method's options.
        leading: number of arguments before the options.
        *words: the arguments of a short form, in place of options, in this order: op, root, timeout.
        wraps: whether a short form has one tensor in place of a list, or one list in place of a list of lists.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            if not named and len(given) == leading + 1 and isinstance(given[leading], options):
                return method(self, *given)
            first, rest = list(given[:leading]), given[leading:]
            first += [named.pop(name) for name in tuple(named) if name not in (*words, "opts")]
            if wraps and any(isinstance(one, torch.Tensor) for one in first):
                first = [[one] if isinstance(one, torch.Tensor) or one else [] for one in first]
            if rest and (isinstance(rest[0], options) or rest[0] is None):
                named["opts"], rest = rest[0], rest[1:]
            if (opts := named.pop("opts", None)) is None:
                opts = options()
            named.update(zip(words, rest))
            for name, value in named.items():
                setattr(
                    opts, _FIELDS[name], dist.ReduceOp(value) if isinstance(value, dist.ReduceOp.RedOpType) else value
                )
            return method(self, *first, opts)

        return cast("Method", call)

    return decorate


def describe(tensors: Tensors) -> str:
    """Returns the number of elements and the dtype of each tensor, as text that all ranks must agree on."""
    return ", ".join([f"{tensor.numel()} x {tensor.dtype}" for tensor in tensors])


def sizes_of(what: str, tensors: Tensors, mine: torch.Tensor, rank: int, world: int, equal: bool = False) -> list[int]:
    """Returns the number of elements of each tensor in a list with one tensor per rank. `mine`: this rank's own tensor: `tensors[rank]`
    must have its size, and all tensors its dtype. `equal`: whether all sizes must be equal. Raises ValueError: the list does not match
    the group or this rank's tensor."""
    sizes = [tensor.numel() for tensor in tensors]
    if len(sizes) != world:
        raise ValueError(f"{what}: a list of {len(sizes)} tensors for {world} ranks")
    if sizes[rank] != mine.numel() or (equal and len(set(sizes)) > 1):
        raise ValueError(f"{what}: {mine.numel()} elements do not fit a list of {sizes} elements on rank {rank}")
    if any(tensor.dtype != mine.dtype for tensor in tensors):
        raise ValueError(f"{what}: all tensors must be {mine.dtype} as this rank's own")
    return sizes


def check_share(what: str, output: torch.Tensor, tensor: torch.Tensor, world: int, input_is_share: bool) -> None:
    """Checks that the whole tensor has `world` times the elements of a share. `input_is_share`: whether `tensor` is the share and
    `output` the whole; False: the reverse. Raises ValueError: sizes or dtypes do not match."""
    whole, share = (output, tensor) if input_is_share else (tensor, output)
    if output.dtype != tensor.dtype:
        raise ValueError(f"{what}: the output is {output.dtype}, and the input {tensor.dtype}")
    if whole.numel() != share.numel() * world:
        raise ValueError(f"{what}: {whole.numel()} elements are not {world} (the world size) times {share.numel()}")


def cut(tensor: torch.Tensor, splits: Sequence[int], world: int) -> list[int]:
    """Returns the number of elements of each rank's part of a tensor that is split along its first dimension. `splits`: lengths of the
    parts; empty: equal parts. Raises ValueError: the parts do not add up to the first dimension."""
    length = len(tensor) if tensor.dim() else 1
    if not splits:
        if length % world:
            raise ValueError(f"all_to_all_single: a first dimension of {length} can't be cut into {world} parts")
        return [tensor.numel() // world] * world
    if len(splits) != world or sum(splits) != length:
        raise ValueError(
            f"all_to_all_single: the splits {list(splits)} do not cut a first dimension of {length} into {world} parts"
        )
    return [tensor.numel() // length * split if length else 0 for split in splits]


def joined(tensors: Tensors) -> torch.Tensor:
    """Returns all elements, one tensor after the other."""
    return torch.cat([tensor.view(-1) for tensor in tensors])


def deal(rows: torch.Tensor, targets: Sequence[Staged]) -> None:
    """Copies row i to target i."""
    for target, row in zip(targets, rows):
        target.host.view(-1).copy_(row)
