"""Averages gradients by hand, with all_reduce after backward.

This is all that data parallelism is. Every rank has the same parameters and
another part of the batch. After `backward` each has the gradient of its own
part; `all_reduce` adds them up, and the sum is divided by the number of
ranks. All ranks then make the same optimizer step, so that their parameters
stay the same without being sent again. DDP gives the same loss, step for
step (compare the recipe `linear`); it is faster because it sends while
`backward` still runs, which is what `linear-hooks` shows.

Try `--no-average`: no `all_reduce`, and every rank learns alone. The last
lines show how far the parameters have come apart.

With `--checkpoint-every 50` rank 0 writes what all ranks have, and a
restart goes on from there.

What goes wrong in practice: the ranks begin with different parameters
(another seed, or none), and nothing ever makes them equal: broadcast them
once. The loss is a sum over samples where it should be a mean, so the step
grows with the number of ranks. A rank has one batch less than the others,
and they wait for it in `all_reduce`. A parameter has no gradient on one
rank (`grad is None`), so that this rank makes fewer calls. One small
`all_reduce` for each parameter is slow: put gradients together in one
buffer.
"""

import signal
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
    average: bool = parameter(True, "average the gradients; without it every rank learns alone")
    seed: int = parameter(0, "decides the data and the initial parameters")
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/linear-allreduce")


def average_gradients(model: torch.nn.Module) -> None:
    """Replaces each gradient by its mean over all ranks. A collective: all ranks call it."""
    world = dist.get_world_size()
    for weights in model.parameters():
        if weights.grad is not None:
            dist.all_reduce(weights.grad)
            weights.grad /= world


def largest_difference(model: torch.nn.Module) -> float:
    """How far any parameter of any rank is from that of another: 0 where all ranks have the same model."""
    mine = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    highest, lowest = mine.clone(), mine.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return float((highest - lowest).max())


def train(parameters: Parameters) -> None:
    """Trains to the last step."""
    device, rank, steps = rankdeck.device(), dist.get_rank(), parameters.steps
    torch.manual_seed(parameters.seed)
    model = torch.nn.Linear(FEATURES, 1).to(device)
    folder = checkpoint.folder("linear-allreduce", parameters.checkpoint_dir)
    saved = resume(folder, device) or {"step": 0}
    if saved["step"]:
        model.load_state_dict(saved["model"])
    for weights in model.parameters():
        dist.broadcast(weights.detach(), src=0)  # the same seed has made them equal; this holds whatever made them
    optimizer = torch.optim.SGD(model.parameters(), lr=parameters.lr)
    begins = f"resumes after step {saved['step']}" if saved["step"] else "starts"
    print(f"rank {rank} of {dist.get_world_size()} on {device}: {begins}")
    for step in range(saved["step"] + 1, steps + 1):
        x, y = draw_batch(parameters.seed, step, parameters.batch)
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if parameters.average:
            average_gradients(model)
        optimizer.step()
        rankdeck.log(step=step, steps=steps, loss=loss, samples=parameters.batch, lr=parameters.lr)
        if rank == 0 and (step % max(1, steps // 10) == 0 or step == steps):
            print(f"rank 0: step {step}/{steps}  loss {loss.item():.6f}")
        every = parameters.checkpoint_every
        if rank == 0 and every and (step % every == 0 or step == steps):
            checkpoint.save(folder, step, {"model": model.state_dict()})

    final = unseen_loss(model, parameters.seed, steps, parameters.batch)
    difference = largest_difference(model)
    if rank == 0:
        print(f"largest difference of a parameter between ranks: {difference:.6f}")
        print(f"final loss {final:.6f}")


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    rankdeck.init_process_group()
    train(parameters)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
