"""Batch normalization whose statistics are those of all ranks. `torch.nn.SyncBatchNorm` does this too, but only on GPUs."""

from typing import Any

import torch
import torch.distributed as dist


class _Sum(torch.autograd.Function):
    """The sum of all ranks' tensors. Each of them has a part in every rank's loss, so gradients are added up as well."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A collective: all ranks call it."""
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SyncBatchNorm2d(torch.nn.BatchNorm2d):
    """`BatchNorm2d` that normalizes with mean and variance of the batches of all ranks. In training, `forward` is a collective. Result,
    gradients and running statistics are those of `BatchNorm2d` on the whole batch, also where ranks have batches of different sizes.
    Needs affine parameters, running statistics and a momentum, which are the defaults."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes a tensor of shape (batch, channels, height, width)."""
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        # float64, because the variance is a small difference of large sums.
        wide = x.double()
        mine = torch.stack(
            [wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3)), wide.new_full((x.shape[1],), x[:, 0].numel())]
        )
        sums, squares, counts = _Sum.apply(mine).unbind()  # type: ignore[no-untyped-call]
        mean = sums / counts
        variance = squares / counts - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.to(x.dtype), self.momentum)
            self.running_var.lerp_((variance * counts / (counts - 1)).to(x.dtype), self.momentum)
        shape = (1, -1, 1, 1)
        scale = self.weight * (variance + self.eps).rsqrt()
        normal: torch.Tensor = (wide - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)
