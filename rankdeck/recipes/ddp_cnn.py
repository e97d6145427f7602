"""Learns images with DDP: batch norm, saved weights, workers.

A small convolutional network learns handwritten digits, each moved by up to
a pixel.

Batch normalization uses mean and variance of the batch, and with DDP that
is each rank's own small one. With 16 images per rank this does no harm. Try
`--batch 2` on four ranks, with and without `--sync-batchnorm`: without it,
two images say little about the mean, and the accuracy ends at 0.80. With
it, all ranks share the statistics of the whole batch, and it ends at 0.90,
for one small all-reduce per layer and pass. (On GPUs it is
`torch.nn.SyncBatchNorm`, which has no CPU version; on CPUs a layer of this
package that computes the same.)

Rank 0 saves the weights, and all ranks load them: `--weights FILE` begins
with those of an earlier run. `--workers N` prepares images in N more
processes for each rank. Which way an image moves depends on seed, epoch and
image only, so that the loss is the same with any number of workers. The
learning rate rises in the first epoch, and then falls along a cosine.

What goes wrong in practice: every rank saves to the same file, which is
then damaged. Every rank loads a file that rank 0 saved on GPU 0, and its
tensors go to GPU 0 for all of them: give `map_location`. Running statistics
differ between ranks, so their accuracies do too: broadcast them before you
evaluate. Workers draw random numbers from one seed, and all make the same
changes.
"""

import copy
import gc
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._batchnorm import SyncBatchNorm2d
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._digits import Digits, Moved, Sample, read_digits
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stop import StopSignal, ignore_signals


@dataclass(frozen=True)
class Parameters:
    epochs: int = parameter(5, "passes over all images", low=1, presets={"small": 1, "minute": 150, "big": 200})
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
        "", "folder of checkpoint and weights; empty: the run's, else ./checkpoints/ddp-cnn"
    )


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


class Training:
    """One rank's part of the training. Raises SystemExit: there are fewer images than a batch takes, or `--weights` can't be read."""

    def __init__(self, parameters: Parameters) -> None:
        self.p, self.device = parameters, rankdeck.device()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.folder = checkpoint.folder("ddp-cnn", self.p.checkpoint_dir)
        learned, self.held_out = read_digits()
        self.images = Moved(learned, self.p.seed)
        seed, images = seed_at(self.p.seed), self.images
        self.sampler = DistributedSampler[Sample](images, self.world, self.rank, seed=seed)
        workers: dict[str, Any] = {"num_workers": self.p.workers, "worker_init_fn": ignore_signals}
        self.loader = DataLoader(images, self.p.batch, sampler=self.sampler, drop_last=True, **workers)
        if not len(self.loader):
            refuse(f"ddp-cnn: each rank has {len(self.sampler)} images: make --batch smaller", ARGUMENTS)
        self.model = make_model(self.p, self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.p.lr, momentum=0.9, weight_decay=1e-4)
        self.shape = {"width": self.p.width, "world": self.world, "batch": self.p.batch}
        begin = self._first_weights()
        on_gpu = self.device.type == "cuda"
        self.ddp = DistributedDataParallel(self.model, device_ids=[self.device.index] if on_gpu else None)
        # DDP regroups its buckets after the first backward pass, which rounds sums in another order. After this pass, which
        # trains nothing, a resumed training rounds as the unbroken one does.
        self.ddp(learned.images[: self.p.batch].to(self.device)).sum().backward()
        self.step, self.steps = 0, self.p.epochs * len(self.loader)
        if (saved := resume(self.folder, self.device, **self.shape)) is not None:
            self.step, begin = int(saved["step"]), saved["model"]
            self.optimizer.load_state_dict(saved["optimizer"])
        self.model.load_state_dict(begin)
        begins = f"resumes after step {self.step}" if self.step else "starts"
        print(f"rank {self.rank} of {self.world} on {self.device}: {begins}")

    def _first_weights(self) -> dict[str, Any]:
        if not self.p.weights:
            return copy.deepcopy(self.model.state_dict())
        found = resume(Path(self.p.weights), self.device, width=self.p.width)
        if found is None:
            refuse(f"ddp-cnn: --weights {self.p.weights}: rank 0 finds no such file", ARGUMENTS)
        weights: dict[str, Any] = found["model"]
        return weights

    def save(self) -> None:
        if self.rank == 0:
            states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            checkpoint.save(self.folder, self.step, {**self.shape, **states})

    def learning_rate(self) -> float:
        """The learning rate of the next step: it rises in the first epoch, and then falls along a cosine."""
        epoch = len(self.loader)
        falling = 0.5 + 0.5 * math.cos(math.pi * max(0, self.step - epoch) / max(1, self.steps - epoch))
        return self.p.lr * min(falling, (self.step + 1) / epoch)

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step. Returns the loss of this rank's batch."""
        self.optimizer.param_groups[0]["lr"] = lr = self.learning_rate()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.ddp(images.to(self.device)), labels.to(self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        epoch = self.images.epoch + 1
        rankdeck.log(step=self.step, steps=self.steps, loss=loss, samples=len(labels), lr=lr, epoch=epoch)
        return loss

    def run_epoch(self, stop: StopSignal) -> None:
        """Trains to the end of an epoch, or to the step in which a signal arrived."""
        self.images.epoch, done = divmod(self.step, len(self.loader))
        self.sampler.set_epoch(self.images.epoch)
        for images, labels in itertools.islice(self.loader, done, None):
            loss = self.learn(images, labels)
            if stopped := stop.agreed():
                self.save()
                print(f"rank {self.rank}: stopped by a signal after step {self.step}")
                stop.leave(stopped)
        self.save()
        recognised = accuracy(self.model, self.held_out, self.device)
        if self.rank == 0:
            rankdeck.log(step=self.step, val_accuracy=recognised)
            where = f"epoch {self.images.epoch + 1}/{self.p.epochs}  step {self.step}/{self.steps}"
            print(f"{where}  loss {loss.item():.4f}  accuracy {recognised:.4f}")


def train(parameters: Parameters) -> None:
    """Trains to the last epoch, or to the step in which a signal arrived."""
    training = Training(parameters)
    with StopSignal(training.device) as stop:
        while training.step < training.steps:
            training.run_epoch(stop)
    weights = training.folder / "weights.pt"
    if training.rank == 0:
        checkpoint.write(weights, {"width": parameters.width, "model": training.model.state_dict()})
        print(f"weights are in {weights}")
    saved = resume(weights, training.device)  # waits for rank 0, and loads with map_location
    assert saved is not None
    training.model.load_state_dict(saved["model"])
    recognised = accuracy(training.model, training.held_out, training.device)
    if training.rank == 0:
        print(f"final accuracy {recognised:.4f}")


def main() -> None:
    parameters = read_parameters(Parameters)
    rankdeck.init_process_group()
    train(parameters)
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
