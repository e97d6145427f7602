# ruff: noqa: T201 - a recipe speaks to its user by printing
"""Learns images with DDP: batch normalization, saved weights, workers.

A small convolutional network learns handwritten digits, each moved by up to a pixel.

Batch normalization uses mean and variance of the batch, and with DDP that is each rank's own small one. With 16 images per rank
this does no harm. Try `--batch 2` on four ranks, with and without `--sync-batchnorm`: without it, two images say little about the
mean, and the accuracy ends at 0.80. With it, all ranks share the statistics of the whole batch, and it ends at 0.90, for one small
all-reduce per layer and pass. (On GPUs it is `torch.nn.SyncBatchNorm`, which has no CPU version; on CPUs a layer of this package that
computes the same.)

Rank 0 saves the weights, and all ranks load them: `--weights FILE` begins with those of an earlier run. `--workers N` prepares
images in N more processes for each rank. Which way an image moves depends on seed, epoch and image only, so that the loss is the same
with any number of workers. The learning rate rises in the first epoch, and then falls along a cosine.

What goes wrong in practice: every rank saves to the same file, and it is torn. Every rank loads a file that rank 0 saved on GPU 0,
and its tensors go to GPU 0 for all of them: give `map_location`. Running statistics differ between ranks, so their accuracies
do too: broadcast them before you evaluate. Workers draw random numbers from one seed, and all make the same changes.
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._batchnorm import SyncBatchNorm2d
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._digits import Digits, read_digits
from rankdeck.recipes._refusal import refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stop import StopSignal, ignore_signals


@dataclass(frozen=True)
class Parameters:
    """What the command line may set."""

    epochs: int = parameter(5, "times that all images are seen", low=1, presets={"small": 1, "minute": 40, "big": 200})
    batch: int = parameter(16, "images per rank and step", low=2, unit="images")
    width: int = parameter(8, "channels of the first layer", low=1, presets={"small": 4, "big": 64})
    lr: float = parameter(0.1, "highest learning rate", low=0.0)
    sync_batchnorm: bool = parameter(False, "share the statistics of a batch over all ranks")
    workers: int = parameter(
        0, "processes for each rank that prepare images; 0: the rank does", low=0, presets={"big": 2}
    )
    seed: int = parameter(0, "decides order and moves of the images, and the initial parameters")
    weights: str = parameter("", "file of weights to begin with, on rank 0's node; left out: random ones")
    checkpoint_dir: str = parameter(
        "", "folder of checkpoint and weights; left out: $RANKDECK_CHECKPOINTS or ./checkpoints/ddp-cnn"
    )


class Moved(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images that are moved by up to one pixel, in each epoch another way."""

    def __init__(self, digits: Digits, seed: int) -> None:
        self._padded, self._labels, self._seed, self.epoch = F.pad(digits.images, (1, 1, 1, 1)), digits.labels, seed, 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        right, down = divmod(seed_at(self._seed, self.epoch, index) % 9, 3)
        return self._padded[index, :, down : down + 8, right : right + 8], self._labels[index]


def make_model(parameters: Parameters, device: torch.device) -> torch.nn.Sequential:
    """Two convolutions, each with normalization, and a linear layer."""
    torch.manual_seed(parameters.seed)
    synchronized = torch.nn.SyncBatchNorm if device.type == "cuda" else SyncBatchNorm2d
    norm: Callable[[int], torch.nn.Module] = synchronized if parameters.sync_batchnorm else torch.nn.BatchNorm2d
    layers: list[torch.nn.Module] = []
    for before, after in ((1, parameters.width), (parameters.width, 2 * parameters.width)):
        convolution = torch.nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, norm(after), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8 * parameters.width, 10)).to(device)


@torch.no_grad()
def accuracy(model: torch.nn.Module, digits: Digits, device: torch.device) -> float:
    """Part of the images that are recognised. A collective: all ranks call it."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    model.eval()
    images, labels = (whole[dist.get_rank() :: dist.get_world_size()].to(device) for whole in digits)
    right = (model(images).argmax(1) == labels).sum()
    dist.all_reduce(right)
    model.train()
    return int(right) / len(digits.labels)


def train(parameters: Parameters) -> None:
    """Trains to the last epoch, or to the step in which a signal arrived."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    folder = checkpoint.folder("ddp-cnn", parameters.checkpoint_dir)
    learned, held_out = read_digits()
    dataset = Moved(learned, parameters.seed)
    sampler = DistributedSampler[tuple[torch.Tensor, torch.Tensor]](dataset, world, rank, seed=seed_at(parameters.seed))
    loader = DataLoader(
        dataset,
        parameters.batch,
        sampler=sampler,
        drop_last=True,
        num_workers=parameters.workers,
        worker_init_fn=ignore_signals,
    )
    if not len(loader):
        refuse(f"ddp-cnn: each rank has {len(sampler)} images: make --batch smaller")
    model = make_model(parameters, device)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=1e-4)
    shape = {"width": parameters.width, "world": world, "batch": parameters.batch}
    begin = copy.deepcopy(model.state_dict())
    if parameters.weights:
        found = resume(Path(parameters.weights), device, width=parameters.width)
        if found is None:
            refuse(f"ddp-cnn: --weights {parameters.weights}: rank 0 finds no such file")
        begin = found["model"]
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    # DDP regroups its buckets after the first backward pass, which rounds sums in another order. After this pass, which trains
    # nothing, a resumed training rounds as the unbroken one does.
    ddp(learned.images[: parameters.batch].to(device)).sum().backward()

    step, steps = 0, parameters.epochs * len(loader)
    if (saved := resume(folder, device, **shape)) is not None:
        step, begin = int(saved["step"]), saved["model"]
        optimizer.load_state_dict(saved["optimizer"])
    model.load_state_dict(begin)

    def save() -> None:
        if rank == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(folder, step, {**shape, **states})

    print(f"rank {rank} of {world} on {device}: {f'resumes after step {step}' if step else 'starts'}")
    with StopSignal(device) as stop:
        while step < steps:
            dataset.epoch, done = divmod(step, len(loader))
            sampler.set_epoch(dataset.epoch)
            for images, labels in itertools.islice(loader, done, None):
                falling = 0.5 + 0.5 * math.cos(math.pi * max(0, step - len(loader)) / max(1, steps - len(loader)))
                lr = parameters.lr * min(falling, (step + 1) / len(loader))
                optimizer.param_groups[0]["lr"] = lr
                optimizer.zero_grad()
                loss = F.cross_entropy(ddp(images.to(device)), labels.to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                step += 1
                rankdeck.log(step=step, steps=steps, loss=loss, samples=len(labels), lr=lr, epoch=dataset.epoch + 1)
                if stopped := stop.agreed():
                    save()
                    print(f"rank {rank}: stopped by a signal after step {step}")
                    stop.leave(stopped)
            save()
            recognised = accuracy(model, held_out, device)
            if rank == 0:
                rankdeck.log(step=step, val_accuracy=recognised)
                print(
                    f"epoch {dataset.epoch + 1}/{parameters.epochs}  step {step}/{steps}  loss {loss.item():.4f}  accuracy {recognised:.4f}"
                )

    weights = folder / "weights.pt"
    if rank == 0:
        checkpoint.write(weights, {"width": parameters.width, "model": model.state_dict()})
        print(f"weights are in {weights}")
    saved = resume(weights, device)  # waits for rank 0, and loads with map_location
    assert saved is not None
    model.load_state_dict(saved["model"])
    recognised = accuracy(model, held_out, device)
    if rank == 0:
        print(f"final accuracy {recognised:.4f}")


def main() -> None:
    """Runs the recipe with the arguments of this process."""
    parameters = read_parameters(Parameters)
    rankdeck.init_process_group()
    train(parameters)
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
