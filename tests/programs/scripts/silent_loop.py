"""A small model on each rank that prints nothing while it trains: its numbers go to TensorBoard or to Weights & Biases, offline."""

import argparse
import os
import time

import torch
from torch import nn


class Board:
    """TensorBoard's writer."""

    def __init__(self, folder):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder)

    def log(self, values, step):
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self):
        self.writer.close()


class Wandb:
    """A run of Weights & Biases that nobody uploads."""

    def __init__(self, folder):
        import wandb

        self.run = wandb.init(project="walk", mode="offline", dir=folder)

    def log(self, values, step):
        self.run.log(values, step=step)

    def close(self):
        self.run.finish()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tracker", choices=("tensorboard", "wandb"), default="tensorboard")
    parser.add_argument("--logdir", default="logs")
    args = parser.parse_args()

    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    os.makedirs(args.logdir, exist_ok=True)
    tracker = {"tensorboard": Board, "wandb": Wandb}[args.tracker](args.logdir) if rank == 0 else None
    model = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in range(1, args.steps + 1):
        time.sleep(0.01)  # reads from a slow disk
        points = torch.rand(64, 128)
        loss = nn.functional.mse_loss(model(points), points.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tracker is not None and step % 5 == 0:
            tracker.log({"train/loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}, step)
    if tracker is not None:
        tracker.close()
        print(f"final {loss.item():.10f}")


if __name__ == "__main__":
    main()
