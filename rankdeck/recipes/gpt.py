"""Trains a GPT on Shakespeare with DDP; a lost rank rejoins.

It reads "As You Like It" character by character. The model is small, but
the training is complete: warm-up and cosine decay, gradient clipping, a
held-out loss, checkpoints, a stop by signal between two steps, and a sample
of text at the end.

`elastic.run` keeps model, optimizer and counters in the memory of every
rank. When a rank dies, the others keep their process and wait; press r, and
the new rank gets everything from one of them. No step is lost.

All random numbers come from one seed. On CPUs two runs of the same layout
give exactly the same loss, and so does a run that was stopped and resumed,
or in which a lost rank has rejoined.

Change `--layers`, `--width` and `--block`, and watch the held-out loss
(`val_loss`): on a text as short as this one a large model soon memorises
the training part. In practice, most trouble comes from what is not
restored: an optimizer that starts from zero after a resume, or a data order
that begins again.
"""

import dataclasses
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck import checkpoint, elastic
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume_alone
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._stop import StopSignal
from rankdeck.recipes._text import Shard, Text, blocks_at, read_text
from rankdeck.recipes._transformer import GPT, Shape, make_optimizer

CLIP = 1.0  # gradients are scaled down to this norm
SAMPLE = 200  # characters of the text that ends a training


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(800, "optimizer steps in all", low=0, presets={"small": 100, "minute": 800, "big": 5000})
    batch: int = parameter(8, "blocks per rank and step", low=1, unit="blocks")
    block: int = parameter(64, "characters per block: the context", low=1, unit="characters", presets={"big": 128})
    layers: int = parameter(3, "transformer blocks", low=1, presets={"big": 6})
    heads: int = parameter(4, "attention heads per transformer block", low=1, presets={"big": 6})
    width: int = parameter(96, "size of the residual stream, a multiple of heads", low=1, presets={"big": 192})
    lr: float = parameter(
        0.003, "peak learning rate; falls along a cosine to a tenth of it", low=0.0, presets={"big": 0.001}
    )
    warmup: int = parameter(50, "the learning rate rises to its peak during these", low=0, unit="steps")
    seed: int = parameter(0, "decides the initial parameters, the order of the text and the sample")
    eval_every: int = parameter(
        100, "steps between measurements of the loss on the held-out tenth; 0: at the end only", low=0, unit="steps"
    )
    checkpoint_every: int = parameter(100, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of the checkpoint; empty: the run's, else ./checkpoints/gpt")


def check(args: Parameters, text: Text) -> None:
    """Ends the recipe if arguments do not fit each other or the text."""
    if args.width % args.heads:
        refuse(f"gpt: --width {args.width} is not a multiple of --heads {args.heads}", ARGUMENTS)
    longest = len(text.held_out) // 2
    if args.block > longest:
        refuse(f"gpt: --block {args.block} is too long for this text: {longest} or less is needed", ARGUMENTS)


def learning_rate(args: Parameters, step: int) -> float:
    """The learning rate of a step, counted from 1: a linear rise, then a cosine down to a tenth."""
    if step <= args.warmup:
        return float(args.lr * step / args.warmup)
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return float(args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))))


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy per character, in nats."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model: GPT, text: Text, batch: int, device: torch.device) -> float:
    """Loss on the held-out text, of which each rank takes its share. A collective: all ranks call it."""
    block = model.shape.block
    starts = torch.arange(0, len(text.held_out) - block, block)[dist.get_rank() :: dist.get_world_size()]
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for some in torch.split(starts, batch):
        inputs, targets = blocks_at(text.held_out, some, block)
        total[0] += loss_of(model, inputs.to(device), targets.to(device)) * len(some)
        total[1] += len(some)
    dist.all_reduce(total)
    return float(total[0] / total[1])


def initial_state(args: Parameters, text: Text, folder: Path) -> elastic.State:
    """Model, optimizer and counters: as seeded, or as rank 0 finds them in its checkpoint, which `elastic.run` gives to all. Raises
    SystemExit: the checkpoint holds a model of another shape."""
    device, n = rankdeck.device(), len(text.characters)
    shape = Shape(characters=n, block=args.block, layers=args.layers, heads=args.heads, width=args.width)
    torch.manual_seed(args.seed)
    model = GPT(shape).to(device)
    state = elastic.State(step=0, model=model, optimizer=make_optimizer(model), seen=0)
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first and (saved := resume_alone(folder, device, shape=dataclasses.asdict(shape))) is not None:
        state.step, state.seen = saved["step"], int(saved["seen"])
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
    return state


def save(state: elastic.State, folder: Path) -> None:
    """Writes a checkpoint. Rank 0 calls it."""
    states = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
    shape = dataclasses.asdict(state.model.shape)
    if checkpoint.save(folder, state.step, {"seen": state.seen, "shape": shape, **states}):
        print(f"rank 0: checkpoint of step {state.step} in {folder}")


def train(args: Parameters, text: Text, state: elastic.State, folder: Path) -> None:
    """Trains to `args.steps`, or to the step in which a signal arrived. Called again whenever a rank has rejoined."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    model, optimizer = state.model, state.optimizer
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    shard = Shard(length=len(text.train), block=args.block, batch=args.batch, seed=args.seed, rank=rank, world=world)

    def next_batch() -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = blocks_at(text.train, shard.starts(state.seen), args.block)
        return inputs.to(device), targets.to(device)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    begins = f"resumes after step {state.step}" if state.step else "starts at step 1"
    print(f"rank {rank} of {world} on {device}, {parameters:,} parameters: {begins} of {args.steps}")
    # DDP regroups its gradient buckets after the first backward pass, and another grouping rounds sums in another order.
    # So that a resumed run adds up as the unbroken one does, a pass that trains nothing comes before either.
    loss_of(ddp, *next_batch()).backward()  # type: ignore[no-untyped-call]
    began, characters = time.monotonic(), 0
    with StopSignal(device) as stop:
        while state.step < args.steps:
            lr = learning_rate(args, state.step + 1)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            loss = loss_of(ddp, *next_batch())
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            state.seen += args.batch * world
            state.step += 1
            step, tokens = state.step, args.batch * args.block
            rankdeck.log(step=step, steps=args.steps, loss=loss, samples=args.batch, tokens=tokens, lr=lr)

            characters += tokens
            if step % (10 if rank == 0 else 100) == 0 or step == args.steps:
                speed = characters / (time.monotonic() - began)
                print(f"rank {rank}: step {step}/{args.steps}  loss {loss.item():.4f}  lr {lr:.1e}  {speed:,.0f} tok/s")
                began, characters = time.monotonic(), 0
            if args.eval_every and step % args.eval_every == 0 and step < args.steps:
                val_loss = held_out_loss(model, text, args.batch, device)
                rankdeck.log(step=step, val_loss=val_loss)
                if rank == 0:
                    print(f"rank 0: step {step}/{args.steps}  val_loss {val_loss:.4f}")

            stopped = stop.agreed()
            is_due = args.checkpoint_every and (stopped or step == args.steps or step % args.checkpoint_every == 0)
            if rank == 0 and is_due:
                save(state, folder)
            if stopped:
                print(f"rank {rank}: stopped by a signal after step {step}")
                stop.leave(stopped)
    final = held_out_loss(model, text, args.batch, device)
    rankdeck.log(step=state.step, val_loss=final)
    if rank == 0:
        print(text.decode(model.sample([text.characters.index("\n")], length=SAMPLE, seed=args.seed)).strip("\n"))
        print(f"final loss {final:.4f}")
    print(f"rank {rank}: done after step {state.step}")


def main() -> None:
    args = read_parameters(Parameters)
    text = read_text()
    check(args, text)
    folder = checkpoint.folder("gpt", args.checkpoint_dir)
    state = initial_state(args, text, folder)
    elastic.run(state)(train)(args, text, state, folder)


if __name__ == "__main__":
    main()
