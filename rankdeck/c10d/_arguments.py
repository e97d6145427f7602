"""Checks of what a caller passes to a collective: a mistake is raised at once, in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rankdeck.c10d._interface import Tensors
from rankdeck.c10d._tensors import Staged


def only(items: Sequence[Any]) -> Any:
    """The only item. Raises ValueError where there are more or none."""
    if len(items) != 1:
        raise ValueError(f"one tensor, or one list of them, is needed; these are {len(items)}")
    return items[0]


def describe(tensors: Tensors) -> str:
    """Number of elements and dtype of each tensor, as text that all ranks must agree on."""
    return ", ".join([f"{tensor.numel()} x {tensor.dtype}" for tensor in tensors])


def sizes_of(what: str, tensors: Tensors, mine: torch.Tensor, rank: int, world: int, equal: bool = False) -> list[int]:
    """Number of elements of each tensor in a list that has one tensor per rank.

    Args:
        what: the collective, for messages.
        tensors: one for each rank of the group.
        mine: this rank's own tensor, which must match number `rank` of the list in size, and all of them in dtype.
        rank, world: of this process in the group, and how many ranks it has.
        equal: whether all must be of one size.

    Raises:
        ValueError: the list does not fit the group or this rank's tensor.
    """
    sizes = [tensor.numel() for tensor in tensors]
    if len(sizes) != world:
        raise ValueError(f"{what}: a list of {len(sizes)} tensors for {world} ranks")
    if sizes[rank] != mine.numel() or (equal and len(set(sizes)) > 1):
        raise ValueError(f"{what}: {mine.numel()} elements do not fit a list of {sizes} elements on rank {rank}")
    if any(tensor.dtype != mine.dtype for tensor in tensors):
        raise ValueError(f"{what}: all tensors must be {mine.dtype} as this rank's own")
    return sizes


def check_share(what: str, output: torch.Tensor, tensor: torch.Tensor, world: int, input_is_share: bool) -> None:
    """Checks that the larger of input and output has `world` times the elements of the other.

    Args:
        what: the collective, for messages.
        output, tensor: what is written and what is read.
        world: how many ranks the group has.
        input_is_share: whether the input is the smaller one.

    Raises:
        ValueError: it has not, or their dtypes differ.
    """
    whole, share = (output, tensor) if input_is_share else (tensor, output)
    if output.dtype != tensor.dtype:
        raise ValueError(f"{what}: the output is {output.dtype}, and the input {tensor.dtype}")
    if whole.numel() != share.numel() * world:
        raise ValueError(f"{what}: {whole.numel()} elements are not {world} (the world size) times {share.numel()}")


def cut(tensor: torch.Tensor, splits: Sequence[int], world: int) -> list[int]:
    """Number of elements of each rank's part of a tensor that is split along its first dimension.

    Args:
        tensor: what is split.
        splits: lengths of the parts; empty: equal ones.
        world: how many ranks the group has.

    Raises:
        ValueError: the parts do not make up the first dimension.
    """
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
    """All elements, one tensor after the other."""
    return torch.cat([tensor.view(-1) for tensor in tensors])


def deal(rows: torch.Tensor, targets: Sequence[Staged]) -> None:
    """Copies row i into the memory of target i."""
    for target, row in zip(targets, rows, strict=True):
        target.host.view(-1).copy_(row)
