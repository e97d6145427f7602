# ruff: noqa: T201 - a recipe speaks to its user by printing
"""Fits a line through noise on every rank: the smallest DistributedDataParallel training that reports, stops and resumes.

What its arguments are is said in `linear.json`.
"""

from __future__ import annotations

import argparse
import gc
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck.recipes import arguments
from rankdeck.recipes._checkpoint import agree_on_checkpoint, checkpoint_path, write_checkpoint
from rankdeck.recipes._stop import StopSignal

FEATURES = 8
NOISE = 0.1
"""Standard deviation; its square is the loss that remains."""


def draw_batch(args: argparse.Namespace, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of a step, of shapes (batch, FEATURES) and (batch, 1): every world-size-th of a seeded draw."""
    rank, world = dist.get_rank(), dist.get_world_size()
    line = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(args.seed))
    generator = torch.Generator().manual_seed(args.seed + step)
    x = torch.randn(args.batch * world, FEATURES, generator=generator)
    y = x @ line + NOISE * torch.randn(args.batch * world, 1, generator=generator)
    return x[rank::world], y[rank::world]


def train(args: argparse.Namespace) -> None:
    """Trains to `args.steps`, or to the step in which a signal arrived."""
    device, rank = rankdeck.device(), dist.get_rank()
    path = checkpoint_path(args.checkpoint_dir, "linear")

    torch.manual_seed(args.seed)
    model = torch.nn.Linear(FEATURES, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    step = 0
    saved = agree_on_checkpoint(path, device)
    if saved is not None:
        step = int(saved["step"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def checkpoint() -> None:
        if rank == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            write_checkpoint(path, state)
            rankdeck.log(step=step, checkpoint=step)
            print(f"rank 0: checkpoint of step {step} in {path.parent}")

    print(
        f"rank {rank} of {dist.get_world_size()} on {device}: {'starts' if saved is None else f'resumes after {step}'}"
    )
    with StopSignal(device) as stop:
        while step < args.steps:
            x, y = draw_batch(args, step + 1)
            loss = F.mse_loss(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            rankdeck.log(step=step, steps=args.steps, loss=loss, samples=args.batch, lr=args.lr)
            if step % (20 if rank == 0 else 100) == 0 or step == args.steps:
                print(f"rank {rank}: step {step}/{args.steps}  loss {loss.item():.6f}")

            stopped = stop.agreed()
            if args.checkpoint and (stopped or step == args.steps or step % args.checkpoint == 0):
                checkpoint()
            if stopped:
                print(f"rank {rank}: stopped by a signal after step {step}")
                stop.leave(stopped)
            time.sleep(args.delay)
    print(f"rank {rank}: done after step {step}")


def main() -> None:
    """Runs the recipe with the arguments of this process."""
    args = arguments("linear")
    rankdeck.init_process_group()
    train(args)
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
