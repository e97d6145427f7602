"""DistributedDataParallel with a bar for the epochs, one for each epoch, and one for its validation."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm, trange


def waves(count, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 64, generator=generator) * 6
    return TensorDataset(points, points.sin().mean(1, keepdim=True))


def validate(model, loader, quiet):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for points, target in tqdm(loader, desc="val", leave=False, disable=quiet):
            total += nn.functional.mse_loss(model(points), target).item()
    model.train()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = waves(2560, 0)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    held_out = DataLoader(waves(256, 1), batch_size=args.batch_size)

    val_loss = 0.0
    for epoch in trange(args.epochs, desc="epochs", disable=rank != 0):
        sampler.set_epoch(epoch)
        bar = tqdm(loader, desc=f"epoch {epoch}", leave=False, disable=rank != 0)
        for points, target in bar:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(points), target)
            loss.backward()
            optimizer.step()
            time.sleep(0.01)  # a larger model takes as long
            bar.set_postfix(loss=f"{loss.item():.5f}")
        val_loss = validate(model.module, held_out, rank != 0)
        if rank == 0:
            tqdm.write(f"epoch {epoch}: val_loss {val_loss:.5f}")
    if rank == 0:
        print(f"final val_loss {val_loss:.8f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
