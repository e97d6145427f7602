"""A loop of one's own with Lightning Fabric: gradient accumulation, validation after each epoch, checkpoints that it resumes from."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 2


def dataset(count, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 8, generator=generator)
    return TensorDataset(points, points.sin().sum(1, keepdim=True))


@torch.no_grad()
def validate(fabric, model, loader):
    model.eval()
    losses = [nn.functional.mse_loss(model(x), y) for x, y in loader]
    model.train()
    return fabric.all_reduce(torch.stack(losses).mean()).item()


def train(fabric, args):
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    # Not shuffled: Fabric's loader counts its epochs from 0 again after a restart, and would shuffle as in an earlier one.
    train_loader, val_loader = fabric.setup_dataloaders(
        DataLoader(dataset(640, 0), batch_size=8), DataLoader(dataset(64, 1), batch_size=8)
    )
    state = {"model": model, "optimizer": optimizer, "epoch": 0, "step": 0}
    last = Path(args.output_dir, "last.ckpt")
    if last.exists():
        fabric.load(last, state)
        fabric.print(f"Resuming after epoch {state['epoch']}")

    while state["epoch"] < args.epochs:
        epoch = state["epoch"] = state["epoch"] + 1
        for batch_idx, (x, y) in enumerate(train_loader, 1):
            begin = time.perf_counter()
            is_accumulating = batch_idx % ACCUMULATE != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = nn.functional.mse_loss(model(x), y)
                fabric.backward(loss / ACCUMULATE)
            if is_accumulating:
                continue
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] == args.fatal_step and fabric.global_rank == 1 and not last_attempt():
                os.kill(os.getpid(), signal.SIGKILL)
            if state["step"] % 5 == 0:
                fabric.print(
                    f"Epoch {epoch} | step {state['step']} | loss {loss.item():.4f},"
                    f" iter time: {(time.perf_counter() - begin) * 1000:.2f} ms"
                )
        val_loss = validate(fabric, model, val_loader)
        fabric.print(f"Epoch {epoch} | val loss {val_loss:.4f}")
        fabric.save(last.with_suffix(".new"), state)
        if fabric.is_global_zero:
            os.replace(last.with_suffix(".new"), last)
        fabric.barrier()
    fabric.print(f"final {val_loss:.6f}")


def last_attempt():
    return os.environ.get("TORCHELASTIC_RESTART_COUNT") != "0"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--output_dir", default="fabric")
    parser.add_argument("--fatal_step", type=int, default=0)
    args = parser.parse_args()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    seed_everything(1)
    train(fabric, args)
