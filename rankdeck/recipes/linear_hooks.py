"""Averages gradients in hooks on parameters, during backward.

`linear-allreduce` waits for `backward` to end, and then sends. But the
gradient of the last layer is there first, and can travel while those of the
layers before it are computed. `register_post_accumulate_grad_hook` calls a
function as soon as a parameter has its gradient; the function starts an
`all_reduce` that nobody waits for yet (`async_op=True`), and `finish` waits
for all of them before the optimizer's step. DDP does this too, with
parameters put together in buckets; its loss is the same, step for step.

It also shows a context manager for the process group: the group is left
however the training ends.

Change: leave out `averaged.finish()`, and run it twice. The final losses
differ from that of `linear-allreduce`, and from each other, and nothing
fails.

What goes wrong in practice: the optimizer steps before `wait`, and uses
gradients of this rank alone. The ranks start their collectives in different
orders, because the model has branches that depend on the data: autograd
calls the hooks in the order of the graph, which must be the same on all
ranks. With gradient accumulation the hook runs in each `backward`, and
averages too often: DDP's `no_sync` is for that (see `ddp-mlp`).
"""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._line import FEATURES, draw_batch, unseen_loss


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(200, "optimizer steps in all", low=1, presets={"small": 20, "minute": 12000, "big": 200000})
    batch: int = parameter(32, "samples per rank and step", low=1, unit="samples")
    lr: float = parameter(0.05, "learning rate", low=0.0)
    seed: int = parameter(0, "decides the data and the initial parameters")
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/linear-hooks")


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Joins the default process group, and leaves it at the end, also after an exception."""
    rankdeck.init_process_group()
    try:
        yield
    finally:
        dist.destroy_process_group()


class Averaged:
    """Averages the gradients of a model, which begins with rank 0's parameters, over all ranks, in the manner of DDP."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._works: list[dist.Work] = []
        for weights in model.parameters():
            dist.broadcast(weights.detach(), src=0)
            weights.register_post_accumulate_grad_hook(self._start)  # type: ignore[no-untyped-call]

    def _start(self, weights: torch.Tensor) -> None:
        """Runs inside `backward`, as soon as these weights have their gradient."""
        assert weights.grad is not None
        weights.grad /= dist.get_world_size()
        work = dist.all_reduce(weights.grad, async_op=True)
        assert work is not None
        self._works.append(work)

    def finish(self) -> None:
        """Waits until all gradients are averaged."""
        for work in self._works:
            work.wait()
        self._works.clear()


def train(parameters: Parameters) -> None:
    """Trains to the last step."""
    device, rank, steps = rankdeck.device(), dist.get_rank(), parameters.steps
    torch.manual_seed(parameters.seed)
    model = torch.nn.Linear(FEATURES, 1).to(device)
    folder = checkpoint.folder("linear-hooks", parameters.checkpoint_dir)
    saved = resume(folder, device) or {"step": 0}
    if saved["step"]:
        model.load_state_dict(saved["model"])
    averaged = Averaged(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters.lr)
    begins = f"resumes after step {saved['step']}" if saved["step"] else "starts"
    print(f"rank {rank} of {dist.get_world_size()} on {device}: {begins}")
    for step in range(saved["step"] + 1, steps + 1):
        x, y = draw_batch(parameters.seed, step, parameters.batch)
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        averaged.finish()
        optimizer.step()
        rankdeck.log(step=step, steps=steps, loss=loss, samples=parameters.batch, lr=parameters.lr)
        if rank == 0 and (step % max(1, steps // 10) == 0 or step == steps):
            print(f"rank 0: step {step}/{steps}  loss {loss.item():.6f}")
        every = parameters.checkpoint_every
        if rank == 0 and every and (step % every == 0 or step == steps):
            checkpoint.save(folder, step, {"model": model.state_dict()})

    final = unseen_loss(model, parameters.seed, steps, parameters.batch)
    if rank == 0:
        print(f"final loss {final:.6f}")


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    with process_group():
        train(parameters)


if __name__ == "__main__":
    main()
