"""Learns handwritten digits with DDP, and all that goes with it.

A small network learns 1,400 images. The script also shows what most real
trainings need:

- `DistributedSampler` gives each rank its own part of the images;
  `set_epoch` shuffles them anew in each epoch.
- `--accumulate` adds up gradients of several parts of a batch. `no_sync`
  keeps DDP from averaging before the last part.
- `--precision bf16`: autocast computes products in bfloat16. Parameters and
  their gradients stay in float32. bfloat16 has the range of float32, so
  small gradients do not become 0. With float16 they do, and a GradScaler is
  needed.
- `--clip` limits the norm of the gradient, after it has been averaged: all
  ranks clip alike.
- `--scale-lr`: with N ranks a batch is N times as large, so the learning
  rate is too, after an epoch that warms up.
- Held-out images can't be shared evenly, so one rank has a batch more.
  `Join` answers its collectives for the ranks that are done.

What goes wrong in practice: without `set_epoch` every epoch has the same
order. A sampler fills up its last batch with images that another rank has
too, so an accuracy measured through it is wrong. A loss printed by rank 0
is that of rank 0: average it first. With many ranks a scaled learning rate
is too high: the loss becomes NaN in the first epoch, and `--no-scale-lr` or
`--clip` help.
"""

import contextlib
import gc
import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._digits import Digits, read_digits
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stop import StopSignal


@dataclass(frozen=True)
class Parameters:
    epochs: int = parameter(10, "passes over all images", low=1, presets={"small": 2, "minute": 300, "big": 1000})
    batch: int = parameter(16, "images per rank and part of a step", low=1, unit="images")
    accumulate: int = parameter(2, "parts of a step whose gradients are added up", low=1)
    hidden: int = parameter(64, "width of the hidden layers", low=1, presets={"small": 16, "big": 1024})
    lr: float = parameter(0.05, "learning rate of one rank", low=0.0)
    scale_lr: bool = parameter(True, "multiply the learning rate by the number of ranks")
    clip: float = parameter(1.0, "largest norm of a gradient", low=0.0)
    precision: str = parameter("bf16", "type of products", choices=("bf16", "float32"))
    seed: int = parameter(0, "decides the order of the images and the initial parameters")
    checkpoint_dir: str = parameter("", "folder of the checkpoint; empty: the run's, else ./checkpoints/ddp-mlp")


class Counter(Joinable):
    """Counts right answers of all ranks. Inside `Join`, ranks may call `add` as often as they like."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.right_and_all = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, right: torch.Tensor, count: int) -> None:
        """Adds this rank's answers. A collective: the ranks in `Join` that have no more batches answer it."""
        Join.notify_join_context(self)
        self.add_everywhere(int(right), count)

    def add_everywhere(self, right: int, count: int) -> None:
        more = torch.tensor([right, count], device=self.join_device)
        dist.all_reduce(more)
        self.right_and_all += more

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """While others still have batches, a rank takes part in their all-reduces, with zeros."""
        hook = JoinHook()
        hook.main_hook = lambda: self.add_everywhere(0, 0)  # type: ignore[method-assign]
        return hook

    @property
    def join_device(self) -> torch.device:
        return self.right_and_all.device

    @property
    def join_process_group(self) -> Any:
        return dist.group.WORLD


@torch.no_grad()
def accuracy(model: torch.nn.Module, digits: Digits, batch: int, device: torch.device) -> float:
    """Part of the images that are recognised. A collective: all ranks call it."""
    counter, mine = Counter(device), slice(dist.get_rank(), None, dist.get_world_size())
    with Join([counter]):
        for images, labels in zip(*(torch.split(whole[mine], batch) for whole in digits)):
            counter.add((model(images.to(device)).argmax(1) == labels.to(device)).sum(), len(labels))
    right, count = counter.right_and_all.tolist()
    return float(right / count)


def gradients(
    parameters: Parameters, ddp: DistributedDataParallel, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Computes the averaged gradients of one step, part by part. Returns this rank's mean loss."""
    parts = list(zip(images.chunk(parameters.accumulate), labels.chunk(parameters.accumulate)))
    total = torch.zeros((), device=images.device)
    for number, (x, y) in enumerate(parts, 1):
        with ddp.no_sync() if number < len(parts) else contextlib.nullcontext():
            with torch.autocast(x.device.type, torch.bfloat16, enabled=parameters.precision == "bf16"):
                loss = F.cross_entropy(ddp(x), y) / len(parts)
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def train(parameters: Parameters) -> None:
    """Trains to the last epoch, or to the step in which a signal arrived."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    folder = checkpoint.folder("ddp-mlp", parameters.checkpoint_dir)
    learned, held_out = read_digits()
    dataset = TensorDataset(learned.images, learned.labels)
    sampler = DistributedSampler[Any](dataset, world, rank, seed=seed_at(parameters.seed))
    size = parameters.batch * parameters.accumulate
    loader = DataLoader(dataset, size, sampler=sampler, drop_last=True)
    if not len(loader):
        refuse(
            f"ddp-mlp: each rank has {len(sampler)} images, and a step takes {size}: make --batch smaller", ARGUMENTS
        )

    torch.manual_seed(parameters.seed)
    hidden = parameters.hidden
    layers = (torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(hidden, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters.lr, momentum=0.9)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    # DDP regroups its buckets after the first backward pass, which rounds sums in another order. After this pass, which trains
    # nothing, a resumed training rounds as the unbroken one does.
    gradients(parameters, ddp, learned.images[:size].to(device), learned.labels[:size].to(device))

    step, steps = 0, parameters.epochs * len(loader)
    shape = {"hidden": hidden, "world": world, "size": size}
    if (saved := resume(folder, device, **shape)) is not None:
        step = int(saved["step"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    def save() -> None:
        if rank == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(folder, step, {**shape, **states})

    print(f"rank {rank} of {world} on {device}: {f'resumes after step {step}' if step else 'starts'}")
    highest = parameters.lr * (world if parameters.scale_lr else 1)
    with StopSignal(device) as stop:
        while step < steps:
            epoch, done = divmod(step, len(loader))
            sampler.set_epoch(epoch)
            for images, labels in itertools.islice(loader, done, None):
                lr = highest * min(1.0, (step + 1) / len(loader))
                optimizer.param_groups[0]["lr"] = lr
                optimizer.zero_grad()
                loss = gradients(parameters, ddp, images.to(device), labels.to(device))
                torch.nn.utils.clip_grad_norm_(model.parameters(), parameters.clip)
                optimizer.step()
                step += 1
                rankdeck.log(step=step, steps=steps, loss=loss, samples=size, lr=lr, epoch=epoch + 1)
                if stopped := stop.agreed():
                    save()
                    print(f"rank {rank}: stopped by a signal after step {step}")
                    stop.leave(stopped)
            save()
            dist.all_reduce(loss)
            found = accuracy(model, held_out, parameters.batch, device)
            if rank == 0:
                rankdeck.log(step=step, val_accuracy=found)
                print(
                    f"epoch {epoch + 1}/{parameters.epochs}  step {step}/{steps}  loss {loss.item() / world:.4f}  accuracy {found:.4f}"
                )
    found = accuracy(model, held_out, parameters.batch, device)
    if rank == 0:
        print(f"final accuracy {found:.4f}")


def main() -> None:
    parameters = read_parameters(Parameters)
    rankdeck.init_process_group()
    train(parameters)
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
