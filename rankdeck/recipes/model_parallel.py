"""Puts one model on two devices of a process, also with DDP.

The first half of the layers is on one device, the second half on another.
`forward` copies the activations from one to the other, and autograd copies
the gradients back. No process group takes part in that: it is the simplest
way to train a model that does not fit into one device. DDP then averages
the gradients of all ranks, each of which has its own pair of devices. Give
it no `device_ids`: these are for models on one device.

A rank uses the GPUs 2r and 2r + 1 of its node if there are two for each
rank and the backend is nccl. Otherwise both devices are stand-ins: the CPU,
or the rank's only GPU, twice. The recipe says so, and computes the same.

What goes wrong in practice:
- While one device computes, the other waits: two devices take as long as
  one. `pipeline` shows how micro-batches change that.
- Input and target must be on different devices: the input on that of the
  first layer, the target on that of the last.
- The halves should need equal memory, not have equally many layers: the
  first one keeps more activations.
- A checkpoint remembers devices. This recipe loads it into host memory
  first.

Change: `--layers` and `--first`; use one rank and compare the time of a
step with that of the whole model on one device.
"""

import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._spirals import ARMS, draw_spirals, held_out_spirals
from rankdeck.recipes._stop import StopSignal


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(200, "optimizer steps in all", low=1, presets={"small": 100, "minute": 5000, "big": 20000})
    batch: int = parameter(64, "points per rank and step", low=1, presets={"big": 1024})
    layers: int = parameter(4, "hidden layers", low=2, presets={"big": 24})
    first: int = parameter(0, "hidden layers on the first device; 0: half of them", low=0)
    width: int = parameter(64, "units of a layer", low=1, presets={"big": 4096})
    lr: float = parameter(0.01, "learning rate", low=0.0, presets={"big": 0.0002})
    seed: int = parameter(0, "decides the initial parameters and the points", low=0)
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of the checkpoint; empty: the run's, else ./checkpoints/model-parallel")


def two_devices() -> tuple[torch.device, torch.device, str]:
    """This rank's pair of devices, and their description."""
    own = rankdeck.device()
    local, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if own.type == "cuda" and torch.cuda.device_count() >= 2 * ranks:
        return torch.device("cuda", 2 * local), torch.device("cuda", 2 * local + 1), "two GPUs"
    return own, own, f"two stand-ins, both of which are {own}"


class TwoParts(nn.Module):
    """A model whose parts are on different devices."""

    def __init__(self, p: Parameters, first: torch.device, second: torch.device) -> None:
        super().__init__()
        torch.manual_seed(p.seed)
        cut = p.first or p.layers // 2
        widths = [2, *[p.width] * p.layers]
        layers = [nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in zip(widths, widths[1:])]
        self.second = second
        self.one = nn.Sequential(*layers[:cut]).to(first)
        self.two = nn.Sequential(*layers[cut:], nn.Linear(p.width, ARMS)).to(second)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Computes logits (batch, ARMS) on the second device from points (batch, 2) on the first."""
        logits: torch.Tensor = self.two(self.one(points).to(self.second))
        return logits


def train(p: Parameters) -> None:
    """Trains to `steps`, or to the step in which a signal arrived."""
    rank, world = dist.get_rank(), dist.get_world_size()
    first, second, what = two_devices()
    model = TwoParts(p, first, second)
    sizes = [sum(tensor.numel() for tensor in part.parameters()) for part in (model.one, model.two)]
    print(f"rank {rank} of {world}: {what}: {sizes[0]:,} parameters on the first, {sizes[1]:,} on the second")

    optimizer = torch.optim.Adam(model.parameters(), lr=p.lr)
    folder = checkpoint.folder("model-parallel", p.checkpoint_dir)
    shape = {"layers": p.layers, "width": p.width, "cut": p.first or p.layers // 2}
    saved = resume(folder, rankdeck.device(), **shape) or {"step": 0}
    if saved["step"]:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        print(f"rank {rank}: resumes after step {saved['step']} of {p.steps}")
    ddp = DistributedDataParallel(model)
    with StopSignal(rankdeck.device()) as stop:
        for step in range(saved["step"] + 1, p.steps + 1):
            points, arms = draw_spirals(p.batch, seed_at(p.seed, step, rank))
            loss = F.cross_entropy(ddp(points.to(first)), arms.to(second))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rankdeck.log(step=step, steps=p.steps, loss=loss, samples=p.batch)
            if rank == 0 and (step % 20 == 0 or step == p.steps):
                print(f"rank 0: step {step}/{p.steps}  loss {loss.item():.4f}")
            stopped = stop.agreed()
            if rank == 0 and p.checkpoint_every and (stopped or step == p.steps or step % p.checkpoint_every == 0):
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                checkpoint.save(folder, step, {**shape, **states})
            if stopped:
                stop.leave(stopped)
    points, arms = held_out_spirals(p.seed)
    with torch.no_grad():
        accuracy = float((model(points.to(first)).argmax(1) == arms.to(second)).float().mean())
    if rank == 0:
        print(f"final accuracy {accuracy:.3f}")


def main() -> None:
    p = read_parameters(Parameters)
    if p.first >= p.layers:
        refuse(f"model-parallel: --first {p.first} leaves none of --layers {p.layers} for the second device", ARGUMENTS)
    rankdeck.init_process_group()
    train(p)
    gc.collect()  # the DDP wrapper stands in a cycle, which holds the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
