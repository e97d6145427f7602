"""A task that is made, not loaded: points on three arms of a spiral, each to be assigned to its arm."""

import math

import torch

from rankdeck.recipes._seeds import seed_at

ARMS = 3
NOISE = 0.15  # standard deviation of the angle, in radians


def held_out_spirals(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws points for measuring the accuracy: those of step 0, on which no step trains."""
    return draw_spirals(1000, seed_at(seed, 0))


def draw_spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws points of shape (count, 2) in the unit circle, and their arms of shape (count,), int64."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.randint(ARMS, (count,), generator=generator)
    radius = torch.rand(count, generator=generator) * 0.9 + 0.1
    angle = 2 * math.pi * (arms / ARMS + radius) + NOISE * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arms
