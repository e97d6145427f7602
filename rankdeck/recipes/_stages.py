"""The parts of the pipeline recipe's stages: layers, and a stage of torch whose work is timed."""

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional as F

from rankdeck.recipes._spirals import ARMS
from rankdeck.recipes._stopwatch import Stopwatch


class Layer(nn.Module):
    """One layer, whose result is added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to the same."""
        return x + F.gelu(self.linear(self.norm(x)))


def make_layers(count: int, width: int, seed: int) -> list[tuple[str, nn.Module]]:
    """The whole model, by the names of its layers: one before and two after those that are alike."""
    torch.manual_seed(seed)
    alike = [(f"layer {number}", Layer(width)) for number in range(count)]
    first, last = nn.Linear(2, width), nn.Linear(width, ARMS)
    return [("first", first), *alike, ("norm", nn.LayerNorm(width)), ("last", last)]


class TimedStage(PipelineStage):
    """A stage of torch whose forward and backward passes are timed by `watch`."""

    watch: Stopwatch

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """One micro-batch forward; its input has been received."""
        with self.watch.running():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.watch.running():
            return super().backward_one_chunk(*args, **kwargs)
