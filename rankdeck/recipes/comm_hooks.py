"""Compresses the gradients of DDP, and measures what it saves.

DDP gives each bucket of gradients to a hook, which returns a future with
the average. A hook may send less than the bucket holds:

    none      all of it, in float32
    fp16      rounded to float16, which is half the bytes
    powersgd  two thin matrices P and Q whose product is close to each
              gradient (T. Vogels et al., "PowerSGD: Practical Low-Rank
              Gradient Compression for Distributed Optimization", NeurIPS
              2019); what the product lacks is added to the next gradient

Each is trained for the same number of steps, and a table compares bytes,
time and accuracy. Between processes of one machine the network costs next
to nothing, so fewer bytes do not always mean less time: compare again over
the network that you have. Try `--rank 8` (closer, more bytes) and
`--hidden 512` (more to save).

With `--checkpoint` rank 0 writes down what each hook comes to, and a
restart measures the others only. A hook is measured from its beginning: two
parts of a measurement, with a restart between them, could not be compared
with the others.

What goes wrong in practice: gradients above 65504 overflow in float16 (use
bfloat16, or divide before the sum, as torch's hook does). Compression
starts in the first steps, when gradients change most: begin with plain
averages, as `--start` does here. The error that powersgd adds to the next
gradient is a part of the training's state: if the checkpoint lacks it, a
resumed run differs. torch has a PowerSGD of its own (`powerSGD_hook`),
which needs numpy.
"""

import gc
import signal
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._digits import Digits, read_digits
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._stopwatch import Stopwatch

Averaged = torch.futures.Future[torch.Tensor]  # DDP reads the types of a hook: they may not be strings


@dataclass(frozen=True)
class Parameters:
    hooks: str = parameter("all", "what is measured", choices=("all", "none", "fp16", "powersgd"))
    steps: int = parameter(
        150, "optimizer steps with each hook", low=1, presets={"small": 20, "minute": 1000, "big": 5000}
    )
    batch: int = parameter(32, "images per rank and step", low=1, unit="images")
    hidden: int = parameter(128, "width of the hidden layers", low=1, presets={"small": 32, "minute": 256, "big": 2048})
    rank: int = parameter(2, "columns of P and Q of powersgd", low=1)
    start: int = parameter(10, "steps before powersgd compresses", low=0, unit="steps")
    lr: float = parameter(0.1, "learning rate", low=0.0)
    seed: int = parameter(0, "decides the images of each step and the initial parameters")
    checkpoint: bool = parameter(False, "keep what each hook comes to, for a restart")
    checkpoint_dir: str = parameter("", "folder of what is kept; empty: the run's, else ./checkpoints/comm-hooks")


class Hook:
    """Averages buckets of gradients, and counts the bytes of this rank's all-reduces."""

    def __init__(self, kind: str, parameters: Parameters) -> None:
        self.bytes, self.step = 0, 0
        self._kind, self._parameters = kind, parameters
        self._thin: dict[torch.Tensor, torch.Tensor] = {}
        self._errors: dict[torch.Tensor, torch.Tensor] = {}

    def __call__(self, state: object, bucket: dist.GradBucket) -> Averaged:  # type: ignore[name-defined]
        """Called by DDP during `backward`, for one bucket after the other, in the same order on every rank."""
        if self._kind == "powersgd" and self.step >= self._parameters.start:
            future = Averaged(devices=[bucket.buffer().device] if bucket.buffer().is_cuda else None)
            future.set_result(self._low_rank(bucket))
            return future
        is_half = self._kind == "fp16"
        self.bytes += bucket.buffer().numel() * (2 if is_half else 4)
        return fp16_compress_hook(None, bucket) if is_half else allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def _low_rank(self, bucket: dist.GradBucket) -> torch.Tensor:  # type: ignore[name-defined]
        for weights, gradient in zip(bucket.parameters(), bucket.gradients()):
            if gradient.dim() < 2:
                self._average(gradient)  # a vector has no rank to lower
                continue
            if weights not in self._thin:  # the same on all ranks
                generator = torch.Generator().manual_seed(seed_at(self._parameters.seed, len(self._thin)))
                columns = min(self._parameters.rank, *gradient.shape)
                self._thin[weights] = torch.randn(gradient.shape[1], columns, generator=generator).to(gradient.device)
                self._errors[weights] = torch.zeros_like(gradient)
            wanted = gradient + self._errors[weights]
            p = torch.linalg.qr(self._average(wanted @ self._thin[weights])).Q
            mine = wanted.T @ p
            self._errors[weights] = wanted - p @ mine.T
            q = self._average(mine)
            gradient.copy_(p @ q.T)
            self._thin[weights] = q.clone()
        averaged: torch.Tensor = bucket.buffer()
        return averaged

    def _average(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.numel() * 4
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
        return tensor


class Result(NamedTuple):
    kilobytes: float
    milliseconds: float
    accuracy: float


def measure(kind: str, parameters: Parameters, digits: tuple[Digits, Digits], first: int, steps: int) -> Result:
    """Trains with one hook. `first`: steps of the hooks before this one. `steps`: steps of all hooks together."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    learned, held_out = digits
    torch.manual_seed(parameters.seed)
    hidden = parameters.hidden
    layers = (torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(hidden, 10)).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    hook = Hook(kind, parameters)
    ddp.register_comm_hook(None, hook.__call__)
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters.lr, momentum=0.9)
    watch = Stopwatch()
    with watch.running():
        for step in range(parameters.steps):
            generator = torch.Generator().manual_seed(seed_at(parameters.seed, step))
            picked = torch.randint(len(learned.labels), (world, parameters.batch), generator=generator)[rank]
            loss = F.cross_entropy(ddp(learned.images[picked].to(device)), learned.labels[picked].to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hook.step += 1
            rankdeck.log(step=first + step + 1, steps=steps, loss=loss, samples=parameters.batch, hook=kind)
    right = (model(held_out.images.to(device)).argmax(1) == held_out.labels.to(device)).sum()
    return Result(hook.bytes / hook.step / 1000, watch.seconds / hook.step * 1000, int(right) / len(held_out.labels))


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    rankdeck.init_process_group()
    rank, digits = dist.get_rank(), read_digits()
    kinds = ["none", "fp16", "powersgd"] if parameters.hooks == "all" else [parameters.hooks]
    if rank == 0:
        print(f"ranks: {dist.get_world_size()}, steps with each hook: {parameters.steps}")
        print("hook       kB a step  ms a step  accuracy")
    folder = checkpoint.folder("comm-hooks", parameters.checkpoint_dir)
    shape = {name: value for name, value in vars(parameters).items() if not name.startswith("checkpoint")}
    shape["world"] = dist.get_world_size()
    saved = (resume(folder, rankdeck.device(), **shape) if parameters.checkpoint else None) or {"results": []}
    results = [Result(*one) for one in saved["results"]]
    for number, kind in enumerate(kinds, 1):
        if number > len(results):
            results.append(
                measure(kind, parameters, digits, len(results) * parameters.steps, len(kinds) * parameters.steps)
            )
            if rank == 0 and parameters.checkpoint:
                checkpoint.save(folder, number * parameters.steps, {"results": [list(one) for one in results], **shape})
        if rank == 0:
            found = results[number - 1]
            print(f"{kind:<9}{found.kilobytes:11.1f}{found.milliseconds:11.2f}{found.accuracy:10.4f}")
    if rank == 0:
        print(f"final accuracy {min(one.accuracy for one in results):.4f}")
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
