"""Averages parameters every few steps instead of gradients.

DDP communicates in every step. Local SGD lets each rank train alone for
`--every` steps, and then averages the parameters of all ranks. That costs a
fraction of the communication, which pays off over slow networks. With
`--every 1` and plain SGD it is the same as averaging gradients, up to
rounding: all ranks step from the same parameters, and the average of their
steps is the step of the average.

Before each average rank 0 prints how far the ranks have drifted apart, and
at the end the part of the time that averaging took.

What goes wrong in practice:
- Ranks whose data differ drift to different optima. With `--sorted` each
  rank has digits of its own; raise `--every` and see it fail.
- An optimizer with momentum or Adam keeps its state on each rank. The state
  belongs to parameters that the average replaces: average it too, or start
  it anew.
- Learning rates that work with DDP may be too high, since a rank's gradient
  has the noise of a small batch.
- Only after an average are all ranks equal: evaluate and write checkpoints
  there, and nowhere else.
- A signal is agreed on at averages only, so a stop takes up to `--every`
  steps.

Change: `--every`, with and without `--sorted`; average in bf16; apply the
average change with a momentum of its own, as DiLoCo does.
"""

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
from rankdeck.recipes._digits import Digits, read_digits
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stop import StopSignal


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(400, "optimizer steps in all", low=1, presets={"small": 100, "minute": 20000, "big": 20000})
    every: int = parameter(10, "steps between averages", low=1, unit="steps")
    batch: int = parameter(32, "images per rank and step", low=1, presets={"big": 256})
    hidden: int = parameter(64, "units of the hidden layer", low=1, presets={"big": 1024})
    lr: float = parameter(0.2, "learning rate", low=0.0)
    sorted: bool = parameter(False, "give each rank other digits (0 to 9) than the others, instead of a mix of all")
    seed: int = parameter(0, "decides the initial parameters and the order of the images")
    checkpoint_every: int = parameter(0, "averages between checkpoints; 0: never", low=0)
    checkpoint_dir: str = parameter("", "folder of the checkpoint; empty: the run's, else ./checkpoints/local-sgd")


def own_images(p: Parameters, digits: Digits) -> Digits:
    """This rank's part of the images: every world-size-th, or a range of digits."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if not p.sorted:
        return Digits(digits.images[rank::world], digits.labels[rank::world])
    order = digits.labels.argsort(stable=True).tensor_split(world)[rank]
    return Digits(digits.images[order], digits.labels[order])


@torch.no_grad()
def average(model: nn.Module) -> float:
    """Averages the parameters over all ranks, as one tensor. Returns the largest change of a number on any rank."""
    flat = nn.utils.parameters_to_vector(model.parameters())
    mean = flat.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    drift = (flat - mean).abs().max()
    dist.all_reduce(drift, dist.ReduceOp.MAX)
    nn.utils.vector_to_parameters(mean, model.parameters())
    return float(drift)


def train(p: Parameters) -> None:
    """Trains to `steps`, or to the average at which a signal was agreed on."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    digits, held_out = read_digits()
    mine = own_images(p, digits)
    torch.manual_seed(p.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, p.hidden), nn.ReLU(), nn.Linear(p.hidden, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)  # without momentum: it has no state to average
    print(f"rank {rank} of {world} on {device}: {len(mine.labels)} images, averages every {p.every} steps")

    folder, shape = checkpoint.folder("local-sgd", p.checkpoint_dir), {"hidden": p.hidden, "world": world}
    saved = resume(folder, device, **shape) or {"step": 0}
    if saved["step"]:
        model.load_state_dict(saved["model"])
        print(f"rank {rank}: resumes after step {saved['step']} of {p.steps}")
    averaging, averages, began = 0.0, 0, time.perf_counter()
    with StopSignal(device) as stop:
        for step in range(saved["step"] + 1, p.steps + 1):
            generator = torch.Generator().manual_seed(seed_at(p.seed, step, rank))
            picks = torch.randint(len(mine.labels), (p.batch,), generator=generator)
            loss = F.cross_entropy(model(mine.images[picks].to(device)), mine.labels[picks].to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rankdeck.log(step=step, steps=p.steps, loss=loss, samples=p.batch)
            if step % p.every and step != p.steps:
                continue
            since, last = time.perf_counter(), loss.item()  # reading the loss waits for the GPU
            drift = average(model)
            averaging, averages = averaging + time.perf_counter() - since, averages + 1
            rankdeck.log(step=step, drift=drift)
            if rank == 0 and (averages % 10 == 0 or step == p.steps):
                print(f"rank 0: step {step}/{p.steps}  loss {last:.4f}  drift {drift:.5f}")
            stopped = stop.agreed()
            is_due = p.checkpoint_every and (stopped or step == p.steps or averages % p.checkpoint_every == 0)
            if rank == 0 and is_due:
                checkpoint.save(folder, step, {"model": model.state_dict(), **shape})
            if stopped:
                stop.leave(stopped)
    with torch.no_grad():
        right = model(held_out.images.to(device)).argmax(1) == held_out.labels.to(device)
    if rank == 0:
        print(f"rank 0: {averages} averages took {averaging / (time.perf_counter() - began):.0%} of the time")
        print(f"final accuracy {right.float().mean():.3f}")


def main() -> None:
    p = read_parameters(Parameters)
    rankdeck.init_process_group()
    train(p)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
