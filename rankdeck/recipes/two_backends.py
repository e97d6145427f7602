"""Makes a second group over another backend, and measures both.

A process group belongs to one backend. `new_group(backend=...)` makes
another group of the same ranks: nccl for tensors on GPUs beside gloo for
those on the CPU, or UCC beside gloo. Backends differ: one has the lower
latency, another the higher bandwidth. So the recipe first times an
all-reduce of each size over both groups; the slowest rank counts. It then
trains, and sends each message over the group that was faster for its size:
the large one with all gradients, and the small one with loss and count.

All ranks must come to the same choice. If one takes the other group, both
wait forever. So they agree on the times by an all-reduce before they
compare them.

A backend sums in an order of its own. With more than two ranks the losses
agree only up to rounding, whatever was chosen.

What goes wrong in practice:
- `new_group` is a collective: all ranks call it, in the same order, those
  too that will not be members.
- A tensor on a GPU can't go over a group for the CPU, or not without a
  copy. Here each group has a device of its own.
- Two nccl groups at once on one GPU can deadlock if ranks issue their
  collectives in different orders.
- If both groups have the same backend, what is measured is noise. This
  recipe says so.

Change: `--second`, `--largest`; add a broadcast to what is measured.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._digits import read_digits
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stop import StopSignal

REFUSED_BACKENDS = {"mpi": "a group over another backend needs a store, and torch makes none for MPI"}

CALLS = 5  # how often each size is measured; the median counts


@dataclass(frozen=True)
class Parameters:
    second: str = parameter("gloo", "backend of the second group", choices=("gloo", "nccl", "ucc"))
    largest: int = parameter(
        1048576,
        "largest message that is measured",
        low=4,
        unit="bytes",
        presets={"small": 65536, "minute": 1048576, "big": 268435456},
    )
    steps: int = parameter(200, "optimizer steps", low=1, presets={"small": 50, "minute": 5000, "big": 20000})
    batch: int = parameter(32, "images per rank and step", low=1, presets={"big": 256})
    hidden: int = parameter(64, "units of the hidden layer", low=1, presets={"big": 1024})
    lr: float = parameter(0.2, "learning rate", low=0.0)
    seed: int = parameter(0, "decides the initial parameters and the order of the images")
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/two-backends")


class Group:
    """A process group, and the device whose tensors it takes."""

    def __init__(self, backend: str | None) -> None:
        if backend == "ucc":
            from rankdeck.c10d import ucc

            ucc.register()
        self.group = dist.new_group(backend=backend) if backend else dist.group.WORLD
        self.name = dist.get_backend(self.group)
        self.device = rankdeck.device() if self.name == "nccl" else torch.device("cpu")

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, on the device where it was."""
        there = tensor.to(self.device, copy=True)
        dist.all_reduce(there, group=self.group)
        return there.to(tensor.device)

    def seconds(self, tensor: torch.Tensor) -> float:
        """How long the slowest rank takes for `sum`, the same on every rank."""
        times = []
        for _ in range(CALLS + 1):
            dist.barrier()
            began = time.perf_counter()
            self.sum(tensor)[0].item()  # waits for the GPU
            times.append(time.perf_counter() - began)
        mine = torch.tensor(statistics.median(times[1:]), device=rankdeck.device())
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        return float(mine)


def measure(p: Parameters, groups: list[Group]) -> dict[int, Group]:
    """The faster group by size in bytes."""
    faster, size = {}, 4
    while size <= p.largest:
        tensor = torch.zeros(size // 4, device=rankdeck.device())
        times = [group.seconds(tensor) for group in groups]
        faster[size] = groups[times.index(min(times))]
        if dist.get_rank() == 0:
            shown = "".join(f"{group.name} {1e6 * took:9.1f} µs  " for group, took in zip(groups, times))
            print(f"rank 0: {size:>10,} bytes  {shown}")
        rankdeck.log(**{f"us_{number}": 1e6 * took for number, took in enumerate(times, 1)}, bytes=size)
        size *= 8
    return faster


def choose(faster: dict[int, Group], tensor: torch.Tensor) -> Group:
    """The group that was faster for the nearest measured size."""
    size = tensor.numel() * tensor.element_size()
    return faster[min(faster, key=lambda measured: max(measured / size, size / measured))]


def train(p: Parameters, faster: dict[int, Group]) -> None:
    """Trains with gradients averaged by hand, or to the step in which a signal arrived."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    digits, held_out = read_digits()
    images, labels = digits.images[rank::world], digits.labels[rank::world]
    torch.manual_seed(p.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, p.hidden), nn.ReLU(), nn.Linear(p.hidden, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    folder = checkpoint.folder("two-backends", p.checkpoint_dir)
    saved = resume(folder, device, hidden=p.hidden, world=world) or {"step": 0}
    if saved["step"]:
        model.load_state_dict(saved["model"])
        print(f"rank {rank}: resumes after step {saved['step']} of {p.steps}")
    with StopSignal(device) as stop:
        for step in range(saved["step"] + 1, p.steps + 1):
            generator = torch.Generator().manual_seed(seed_at(p.seed, step, rank))
            picks = torch.randint(len(labels), (p.batch,), generator=generator)
            loss = F.cross_entropy(model(images[picks].to(device)), labels[picks].to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
            large, small = torch.cat([gradient.flatten() for gradient in gradients]), loss.detach().reshape(1)
            by_large, by_small = choose(faster, large), choose(faster, small)
            means = torch.split(by_large.sum(large) / world, [gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means):
                gradient.copy_(mean.view_as(gradient))
            optimizer.step()
            mean_loss = float(by_small.sum(small)) / world
            rankdeck.log(step=step, steps=p.steps, loss=mean_loss, samples=p.batch)
            if step == saved["step"] + 1 and rank == 0:
                sizes = [4 * tensor.numel() for tensor in (large, small)]
                print(f"rank 0: gradients of {sizes[0]:,} bytes over {by_large.name}, the loss over {by_small.name}")
            if rank == 0 and (step % 20 == 0 or step == p.steps):
                print(f"rank 0: step {step}/{p.steps}  loss {mean_loss:.4f}")
            stopped = stop.agreed()
            if rank == 0 and p.checkpoint_every and (stopped or step == p.steps or step % p.checkpoint_every == 0):
                checkpoint.save(folder, step, {"model": model.state_dict(), "hidden": p.hidden, "world": world})
            if stopped:
                stop.leave(stopped)
    with torch.no_grad():
        right = model(held_out.images.to(device)).argmax(1) == held_out.labels.to(device)
    if rank == 0:
        print(f"final accuracy {right.float().mean():.3f}")


def main() -> None:
    p = read_parameters(Parameters)
    rankdeck.init_process_group()
    if "mpi" in dist.get_backend():
        refuse("two-backends: mpi can't be the first backend: " + REFUSED_BACKENDS["mpi"], ARGUMENTS)
    try:
        groups = [Group(None), Group(p.second)]
    except RuntimeError as error:  # torch has no such backend, or the backend no library
        refuse(f"two-backends: --second {p.second} can't be used: {str(error).splitlines()[0]}", ARGUMENTS)
    if dist.get_rank() == 0 and groups[0].name == groups[1].name:
        print(f"rank 0: both groups are over {groups[0].name}, so what differs is noise: name another with --second")
    train(p, measure(p, groups))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
