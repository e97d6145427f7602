"""Cuts a model into stages, and measures the pipeline's bubble.

Each rank has a few layers. Activations go from stage to stage, and
gradients come back. The recipe trains the same model three times:

- `by-hand`: with `send` and `recv`. One stage computes while all others
  wait: of N stages, each idles (N - 1)/N of the time.
- `gpipe`: `torch.distributed.pipelining` cuts the batch into M
  micro-batches. Stage 2 works on the first while stage 1 computes the
  second. The bubble at both ends remains: (N - 1)/(M + N - 1) of
  the time.
- `1f1b`: the same bubble, but a stage begins with backward passes as soon
  as it can. So it keeps the activations of at most N micro-batches, not of
  M.

All three add up the same gradients, so the losses agree up to rounding: the
schedule changes time and memory, not the training. The measured bubble is
the time of a step in which this rank computes nothing. It is higher than
the formula where stages are uneven or transfers slow, and it means little
where ranks share a core.

With `--checkpoint-every` each rank writes the layers that it has, under
names that do not depend on the cut. So a restart may have another number of
stages.

What goes wrong in practice:
- Both sides of a transfer must expect the same shape and type. torch finds
  them out by a trial run, or takes them as here.
- Two neighbours that both `send` first wait for each other forever.
- Only the last rank knows the loss. Here it broadcasts it.
- The slowest stage sets the pace: balance layers by time, not by number.

Change: `--micro-batches`, `--layers`; give the last stage more layers;
print `torch.cuda.max_memory_allocated` for `gpipe` and `1f1b`.
"""

import gc
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._sharded import ShardedCheckpoint
from rankdeck.recipes._spirals import ARMS, draw_spirals, held_out_spirals
from rankdeck.recipes._stages import TimedStage, make_layers
from rankdeck.recipes._stop import StopSignal
from rankdeck.recipes._stopwatch import Stopwatch

TORCH = "2.11"


@dataclass(frozen=True)
class Parameters:
    schedule: str = parameter("all", "how batches go through", choices=("all", "by-hand", "gpipe", "1f1b"))
    steps: int = parameter(
        60, "optimizer steps of each schedule", low=1, presets={"small": 40, "minute": 200, "big": 1000}
    )
    batch: int = parameter(1024, "points a step, multiple of micro-batches", low=1, presets={"small": 128, "big": 8192})
    micro_batches: int = parameter(8, "parts of a batch, at least the number of ranks", low=1, presets={"big": 32})
    layers: int = parameter(8, "layers of the model, at least the number of ranks", low=1, presets={"big": 32})
    width: int = parameter(256, "units of a layer", low=1, presets={"small": 32, "big": 2048})
    lr: float = parameter(0.002, "learning rate", low=0.0, presets={"small": 0.01, "big": 0.0003})
    seed: int = parameter(0, "decides the initial parameters and the points", low=0)
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/pipeline")


def own_layers(p: Parameters, rank: int, world: int) -> nn.Sequential:
    """The layers of one stage: every rank makes the whole seeded model, and keeps its part under the names in the whole."""
    whole = make_layers(p.layers, p.width, p.seed)
    begin = 1 + rank * p.layers // world if rank else 0
    end = 1 + (rank + 1) * p.layers // world if rank < world - 1 else len(whole)
    return nn.Sequential(OrderedDict(whole[begin:end]))


class Pipeline:
    """One rank's stage, and its neighbours."""

    def __init__(self, p: Parameters) -> None:
        self.p, self.device, self.watch = p, rankdeck.device(), Stopwatch()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_first, self.is_last = self.rank == 0, self.rank == self.world - 1
        self.layers = own_layers(p, self.rank, self.world).to(self.device)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=p.lr)
        self.trained = self.layers, self.optimizer

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and output of this stage. The first has the points as input, all others what they receive."""
        x = points if self.is_first else torch.empty(len(points), self.p.width, device=self.device)
        if not self.is_first:
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_()
        with self.watch.running():
            out = self.layers(x)
        if not self.is_last:
            dist.send(out.detach(), dst=self.rank + 1)
        return x, out

    def by_hand(self, points: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
        """One step forward and backward; the last stage returns the loss, all others 0."""
        x, out = self.forward(points)
        loss, slope = torch.zeros((), device=self.device), None
        if self.is_last:
            loss = F.cross_entropy(out, arms)
        else:
            slope = torch.empty_like(out)
            dist.recv(slope, src=self.rank + 1)
        with self.watch.running():
            (loss if self.is_last else out).backward(slope)  # type: ignore[no-untyped-call]
        if not self.is_first:
            assert x.grad is not None
            dist.send(x.grad, dst=self.rank - 1)
        return loss.detach()

    def by_torch(self, name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The same with micro-batches."""
        size = self.p.batch // self.p.micro_batches
        # torch asks these examples, too, which gradients go back.
        points = torch.empty(size, 2, device=self.device)
        hidden, logits = (torch.empty(size, n, device=self.device, requires_grad=True) for n in (self.p.width, ARMS))
        sees, gives = points if self.is_first else hidden, logits if self.is_last else hidden
        stage = TimedStage(self.layers, self.rank, self.world, self.device, input_args=sees, output_args=gives)
        stage.watch = self.watch
        make = ScheduleGPipe if name == "gpipe" else Schedule1F1B
        schedule = make(stage, n_microbatches=self.p.micro_batches, loss_fn=F.cross_entropy)

        def step(points: torch.Tensor, arms: torch.Tensor) -> torch.Tensor:
            losses: list[torch.Tensor] = []
            inputs = (points,) if self.is_first else ()
            schedule.step(*inputs, target=arms if self.is_last else None, losses=losses if self.is_last else None)
            return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)

        return step

    @torch.no_grad()
    def accuracy(self) -> float:
        """Part of the unseen points that are assigned to their arm; the last stage tells all others."""
        points, arms = (tensor.to(self.device) for tensor in held_out_spirals(self.p.seed))
        _, out = self.forward(points)
        right = (out.argmax(1) == arms).float().mean() if self.is_last else torch.zeros((), device=self.device)
        dist.broadcast(right, src=self.world - 1)
        return float(right)


def train(p: Parameters, names: list[str], number: int, begin: int, sharded: ShardedCheckpoint) -> float:
    """Trains with one schedule, from the seeded start or from a checkpoint. Returns the accuracy."""
    pipeline, name = Pipeline(p), names[number]
    if begin:
        sharded.read_training(*pipeline.trained, layers=p.layers)
    run = pipeline.by_hand if name == "by-hand" else pipeline.by_torch(name)
    bubbles: list[float] = []
    loss = torch.zeros((), device=pipeline.device)
    with StopSignal(pipeline.device) as stop:
        for step in range(begin + 1, p.steps + 1):
            points, arms = (tensor.to(pipeline.device) for tensor in draw_spirals(p.batch, seed_at(p.seed, step)))
            pipeline.optimizer.zero_grad()
            dist.barrier()
            pipeline.watch.seconds, began = 0.0, time.perf_counter()
            loss = run(points, arms)
            dist.barrier()
            bubbles.append(1 - pipeline.watch.seconds / (time.perf_counter() - began))
            pipeline.optimizer.step()
            dist.broadcast(loss, src=pipeline.world - 1)
            samples, total = p.batch if pipeline.is_first else 0, number * p.steps + step
            rankdeck.log(step=total, steps=len(names) * p.steps, loss=loss, samples=samples, bubble=bubbles[-1])
            stopped = stop.agreed()
            if p.checkpoint_every and (stopped or step == p.steps or step % p.checkpoint_every == 0):
                sharded.write_training(total, *pipeline.trained, schedule=name, done=step, layers=p.layers)
            if stopped:
                stop.leave(stopped)
    n, m = pipeline.world, 1 if name == "by-hand" else p.micro_batches
    measured = f"bubble {sum(bubbles) / max(1, len(bubbles)):.0%} of a step, by the formula {(n - 1) / (m + n - 1):.0%}"
    print(f"rank {pipeline.rank}: {name}  loss {loss.item():.6f}  {measured}")
    return pipeline.accuracy()


def main() -> None:
    p = read_parameters(Parameters)
    rankdeck.init_process_group()
    world = dist.get_world_size()
    if p.batch % p.micro_batches:
        refuse(f"pipeline: --batch {p.batch} is not a multiple of --micro-batches {p.micro_batches}", ARGUMENTS)
    if min(p.layers, p.micro_batches) < world:
        refuse(f"pipeline: {world} ranks need --layers {world} and --micro-batches {world}, or more", ARGUMENTS)
    names = ["by-hand", "gpipe", "1f1b"] if p.schedule == "all" else [p.schedule]
    sharded = ShardedCheckpoint(checkpoint.folder("pipeline", p.checkpoint_dir), rankdeck.device())
    saved: dict[str, Any] = {"schedule": names[0], "done": 0}
    if sharded.read(saved):
        print(f"rank {dist.get_rank()}: resumes {saved['schedule']} after step {saved['done']} of {p.steps}")
    # The parameters are the same in each schedule, so another one can go on.
    first = names.index(saved["schedule"]) if saved["schedule"] in names else 0
    for number in range(first, len(names)):
        accuracy = train(p, names, number, saved["done"] if number == first else 0, sharded)
    if dist.get_rank() == 0:
        print(f"final accuracy {accuracy:.3f}")
    gc.collect()  # the stages stand in cycles, which hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
