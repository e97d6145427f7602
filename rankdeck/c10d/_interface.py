"""What a library offers to the process groups: its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from rankdeck.c10d._reductions import Reduction

Tensors = Sequence[torch.Tensor]


class Collectives(Protocol):
    """The collectives of a library, blocking, on contiguous tensors in memory that it may use. A module; `team` is its own kind."""

    def all_reduce(self, team: Any, tensor: torch.Tensor, op: Reduction, /) -> None:
        """Reduces in place; the same bits on every rank."""

    def reduce(self, team: Any, result: torch.Tensor | None, tensor: torch.Tensor, op: Reduction, root: int, /) -> None:
        """Reduces to one rank. `result` is where the root wants it, `tensor` itself for instance; None on the others."""

    def broadcast(self, team: Any, tensor: torch.Tensor, root: int, /) -> None:
        """Gives the root's contents to all."""

    def all_gather(self, team: Any, output: torch.Tensor, tensor: torch.Tensor, in_place: bool = False, /) -> None:
        """All ranks' tensors, one after the other. `in_place`: on some rank the tensor is a part of the output."""

    def all_gather_uneven(self, team: Any, outputs: Tensors, tensor: torch.Tensor, /) -> None:
        """All ranks' tensors, where they differ in size."""

    def reduce_scatter(self, team: Any, output: torch.Tensor, tensor: torch.Tensor, op: Reduction, /) -> None:
        """Reduces, and leaves each rank its share."""

    def reduce_scatter_uneven(self, team: Any, output: torch.Tensor, tensors: Tensors, op: Reduction, /) -> None:
        """Reduces, and leaves each rank its share, where these differ in size."""

    def gather(self, team: Any, output: torch.Tensor | None, tensor: torch.Tensor, root: int, /) -> None:
        """All ranks' tensors, one after the other, to one rank."""

    def scatter(self, team: Any, output: torch.Tensor, tensor: torch.Tensor | None, root: int, /) -> None:
        """Gives each rank its share of the root's tensor."""

    def all_to_all(self, team: Any, output: torch.Tensor, tensor: torch.Tensor, /) -> None:
        """Share i of rank j becomes share j of rank i; all shares are of one size."""

    def all_to_all_uneven(self, team: Any, outputs: Tensors, tensors: Tensors, /) -> None:
        """Tensor i of rank j becomes output j of rank i, whatever their sizes."""
