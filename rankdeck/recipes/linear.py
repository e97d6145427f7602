"""Fits a line with DDP: the smallest training that resumes.

It takes seconds, so it is the recipe for testing a layout, a backend or a
failure. Every rank draws its part of the same seeded batch, so the loss
depends on the world size only through the size of the batch; it converges
to 0.01, which is the noise of the data.

`--delay` makes each step slower, so that you can watch the run. With
`--checkpoint N` rank 0 writes a checkpoint every N steps; stop the run and
restart it, and it goes on from there. A signal to any rank stops all of
them after the same step: ranks that leave in different steps would leave
the others waiting in an all-reduce, which is the most common way for a job
to hang at its end.
"""

import gc
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._line import FEATURES, draw_batch, unseen_loss
from rankdeck.recipes._stop import StopSignal


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(200, "optimizer steps in all", low=0, presets={"small": 20, "minute": 200, "big": 20000})
    batch: int = parameter(32, "samples per rank and step", low=1, unit="samples")
    lr: float = parameter(0.05, "learning rate", low=0.0)
    seed: int = parameter(0, "decides the data and the initial parameters")
    delay: float = parameter(
        0.0, "sleep after each step, for a run that lasts", low=0.0, unit="seconds", presets={"minute": 0.3}
    )
    checkpoint: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of the checkpoint; empty: the run's, else ./checkpoints/linear")


def train(args: Parameters) -> None:
    """Trains to `args.steps`, or to the step in which a signal arrived."""
    device, rank = rankdeck.device(), dist.get_rank()
    folder = checkpoint.folder("linear", args.checkpoint_dir)

    torch.manual_seed(args.seed)
    model = torch.nn.Linear(FEATURES, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    step = 0
    saved = resume(folder, device)
    if saved is not None:
        step = int(saved["step"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def save() -> None:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if checkpoint.save(folder, step, state):
                print(f"rank 0: checkpoint of step {step} in {folder}")

    print(
        f"rank {rank} of {dist.get_world_size()} on {device}: {'starts' if saved is None else f'resumes after {step}'}"
    )
    with StopSignal(device) as stop:
        while step < args.steps:
            x, y = draw_batch(args.seed, step + 1, args.batch)
            loss = F.mse_loss(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            rankdeck.log(step=step, steps=args.steps, loss=loss, samples=args.batch, lr=args.lr)
            if step % (20 if rank == 0 else 100) == 0 or step == args.steps:
                print(f"rank {rank}: step {step}/{args.steps}  loss {loss.item():.6f}")

            stopped = stop.agreed()
            if args.checkpoint and (stopped or step == args.steps or step % args.checkpoint == 0):
                save()
            if stopped:
                print(f"rank {rank}: stopped by a signal after step {step}")
                stop.leave(stopped)
            time.sleep(args.delay)
    final = unseen_loss(model, args.seed, step, args.batch)
    if rank == 0:
        print(f"final loss {final:.6f}")
    print(f"rank {rank}: done after step {step}")


def main() -> None:
    args = read_parameters(Parameters)
    rankdeck.init_process_group()
    train(args)
    gc.collect()  # the DDP wrapper stands in a cycle; what it holds of the group must be gone before the interpreter goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
