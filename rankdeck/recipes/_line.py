"""The data of the linear recipes: a line through noise, of which every rank draws its own samples."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

import rankdeck
from rankdeck.recipes._seeds import seed_at

FEATURES = 8
NOISE = 0.1  # standard deviation; its square is the loss that remains


def draw_batch(seed: int, step: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws this rank's samples of a step. They follow from the arguments alone, so a resumed training needs no state for them. Returns
    inputs and targets, of shapes (batch, FEATURES) and (batch, 1): every world-size-th sample of a draw of all ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    line = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(seed_at(seed)))
    generator = torch.Generator().manual_seed(seed_at(seed, step))
    x = torch.randn(batch * world, FEATURES, generator=generator)
    y = x @ line + NOISE * torch.randn(batch * world, 1, generator=generator)
    return x[rank::world], y[rank::world]


@torch.no_grad()
def unseen_loss(model: torch.nn.Module, seed: int, step: int, batch: int) -> float:
    """Mean over all ranks of the loss on samples that no training has seen. A collective: all ranks call it. `step`: the last one of the
    training; the samples are those of the next."""
    x, y = (half.to(rankdeck.device()) for half in draw_batch(seed, step + 1, batch))
    loss = F.mse_loss(model(x), y)
    dist.all_reduce(loss)
    return float(loss / dist.get_world_size())
