# ruff: noqa: T201 - a recipe speaks to its user by printing
"""Trains a character-level GPT with DistributedDataParallel; a model that is small but a training that is complete.

Seeded throughout: on CPUs two runs of the same layout give the same loss to the last bit, and so does a run that was stopped
and resumed, or that lost a rank and took it back. What its arguments are is said in `gpt.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck import elastic
from rankdeck.recipes import arguments
from rankdeck.recipes._checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from rankdeck.recipes._stop import StopSignal
from rankdeck.recipes._text import Shard, Text, blocks_at, read_text
from rankdeck.recipes._transformer import GPT, Shape

WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
CLIP = 1.0
"""Gradients are scaled down to this norm."""

SAMPLE = 200
"""Characters of the text that ends a training."""


def check(args: argparse.Namespace, text: Text) -> None:
    """Refuses what can't be trained.

    Raises:
        SystemExit: an argument is out of its range.
    """
    for name in ("batch", "block", "layers", "heads", "width"):
        if getattr(args, name) < 1:
            raise SystemExit(f"gpt: --{name} {getattr(args, name)}: 1 or more is needed")
    if args.width % args.heads:
        raise SystemExit(f"gpt: --width {args.width} is not a multiple of --heads {args.heads}")
    longest = len(text.held_out) // 2
    if args.block > longest:
        raise SystemExit(f"gpt: --block {args.block} is too long for this text: {longest} or less is needed")


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Of a step counted from 1: a linear rise, then a cosine down to a tenth."""
    if step <= args.warmup:
        return float(args.lr * step / args.warmup)
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return float(args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))))


def make_optimizer(model: GPT) -> torch.optim.AdamW:
    """AdamW that decays matrices, and leaves biases and norms alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=BETAS)


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


def initial_state(args: argparse.Namespace, text: Text, path: Path) -> elastic.State:
    """Model, optimizer and counters: as seeded, or as rank 0 finds them in its checkpoint, which `elastic.run` gives to all.

    Raises:
        SystemExit: the checkpoint holds a model of another shape.
    """
    device = rankdeck.device()
    shape = Shape(
        characters=len(text.characters), block=args.block, layers=args.layers, heads=args.heads, width=args.width
    )
    torch.manual_seed(args.seed)
    model = GPT(shape).to(device)
    state = elastic.State(step=0, model=model, optimizer=make_optimizer(model), seen=0)
    saved = read_checkpoint(path, device) if os.environ.get("RANK", "0") == "0" else None
    if saved is not None:
        if saved["shape"] != dataclasses.asdict(shape):
            raise SystemExit(
                f"gpt: {path} holds a model of another shape, {saved['shape']}: name another --checkpoint-dir, or delete it"
            )
        state.step, state.seen = int(saved["step"]), int(saved["seen"])
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
    return state


def train(args: argparse.Namespace, text: Text, state: elastic.State, path: Path) -> None:
    """Trains to `args.steps`, or to the step in which a signal arrived. Entered again whenever a rank has come back."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    model, optimizer = state.model, state.optimizer
    ddp = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    shard = Shard(length=len(text.train), block=args.block, batch=args.batch, seed=args.seed, rank=rank, world=world)

    def next_batch() -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = blocks_at(text.train, shard.starts(state.seen), args.block)
        return inputs.to(device), targets.to(device)

    def checkpoint() -> None:
        if rank == 0:
            saved = {
                "step": state.step,
                "seen": state.seen,
                "shape": dataclasses.asdict(model.shape),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            write_checkpoint(path, saved)
            rankdeck.log(step=state.step, checkpoint=state.step)
            print(f"rank 0: checkpoint of step {state.step} in {path.parent}")

    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"rank {rank} of {world} on {device}: {parameters:,} parameters, "
        + (f"resumes after step {state.step} of {args.steps}" if state.step else f"starts at step 1 of {args.steps}")
    )
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
            if args.eval_every and (step % args.eval_every == 0 or step == args.steps):
                val_loss = held_out_loss(model, text, args.batch, device)
                rankdeck.log(step=step, val_loss=val_loss)
                if rank == 0:
                    print(f"rank 0: step {step}/{args.steps}  val_loss {val_loss:.4f}")

            stopped = stop.agreed()
            if args.checkpoint_every and (stopped or step == args.steps or step % args.checkpoint_every == 0):
                checkpoint()
            if stopped:
                print(f"rank {rank}: stopped by a signal after step {step}")
                stop.leave(stopped)
    if rank == 0:
        prompt = [text.characters.index("\n")]
        print(text.decode(model.sample(prompt, length=SAMPLE, seed=args.seed)).strip("\n"))
    print(f"rank {rank}: done after step {state.step}")


def main() -> None:
    """Runs the recipe with the arguments of this process."""
    args = arguments("gpt")
    text = read_text()
    check(args, text)
    path = checkpoint_path(args.checkpoint_dir, "gpt")
    state = initial_state(args, text, path)
    elastic.run(state)(train)(args, text, state, path)


if __name__ == "__main__":
    main()
