"""Reductions that a library has no datatypes for, float16 and bfloat16, made of what it has: data is moved, and torch reduces it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rankdeck.c10d._reductions import Reduction, combine

AT_ONCE = 1 << 20
"""Items of a rank's share that are reduced at once: what is needed of extra memory, and small enough for its caches."""

Move = Callable[[torch.Tensor, torch.Tensor], None]
"""An all-to-all or all-gather: given the output, and what goes in."""

Gather = Callable[["torch.Tensor | None", torch.Tensor], None]
"""A gathering to the root: given the output, or None, and what goes in."""


def all_reduce(
    all_to_all: Move, all_gather: Move, size: int, tensor: torch.Tensor, op: Reduction, at_once: int = AT_ONCE
) -> None:
    """Every rank gets one share of all ranks' items, reduces it, and gives the result to all.

    Args:
        all_to_all, all_gather: of the library.
        size: how many ranks there are.
        tensor: contiguous; reduced in place.
        op: the reduction.
        at_once: items of a share.
    """
    flat = tensor.view(-1)
    for at in range(0, len(flat), size * at_once):
        piece = flat[at : at + size * at_once]
        share = -(-len(piece) // size)
        mine, others = (torch.zeros(size, share, dtype=flat.dtype) for _ in range(2))
        mine.view(-1)[: len(piece)] = piece
        all_to_all(others, mine)
        all_gather(mine, combine(others, op))
        piece.copy_(mine.view(-1)[: len(piece)])


def reduce(gather: Gather, size: int, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction) -> None:
    """The root gets all ranks' items and reduces them. `result` is None on the others."""
    flat = tensor.view(-1)
    for at in range(0, len(flat), AT_ONCE):
        piece = flat[at : at + AT_ONCE]
        rows = torch.empty(size, len(piece), dtype=flat.dtype) if result is not None else None
        gather(rows, piece)
        if result is not None and rows is not None:
            result.view(-1)[at : at + len(piece)] = combine(rows, op)
