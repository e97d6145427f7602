"""Trains a GPT whose parameters FSDP2 shards over the ranks.

DDP keeps the whole model on every rank. `fully_shard` keeps a part: each
parameter becomes a DTensor, of which a rank holds one slice. Before a block
computes, its ranks gather its parameters; after that they free them again;
gradients are reduced and scattered, so the optimizer, too, has only this
rank's slice. Rank 0 prints how many numbers it holds and how many the model
has.

Each block is wrapped, then the whole model: what is wrapped together is
gathered together. One wrapper around the whole model saves hardly any
memory during forward and backward.

The checkpoint is sharded: each rank writes its slices with
`torch.distributed.checkpoint`, and 2 ranks can resume what 4 have written.
`--batch` counts the blocks of a step over all ranks, so the loss goes on
where it was.

What goes wrong in practice:
- Every forward and backward pass is a collective. A rank that evaluates one
  batch more than the others waits forever. So the evaluation leaves out the
  blocks that do not fill a step.
- An optimizer that is made before `fully_shard` holds the old parameters,
  and trains nothing.
- `model.state_dict()` gives DTensors. `torch.save` by rank 0 alone would
  write one slice.
- The folder of the checkpoint must be on a file system that all nodes
  share.

Change: `--width` and `--layers`, and watch the numbers per rank; wrap only
the whole model; resume with another number of ranks.
"""

import gc
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._sharded import ShardedCheckpoint
from rankdeck.recipes._stop import StopSignal
from rankdeck.recipes._text import Shard, Text, blocks_at, read_text
from rankdeck.recipes._transformer import GPT, Shape

TORCH = "2.7"


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(300, "optimizer steps in all", low=1, presets={"small": 60, "minute": 400, "big": 3000})
    batch: int = parameter(
        32, "blocks per step over all ranks, a multiple of their number", low=1, presets={"small": 8, "big": 128}
    )
    block: int = parameter(64, "characters per block, which is the context length", low=1, presets={"small": 32})
    layers: int = parameter(3, "transformer blocks", low=1, presets={"small": 2, "big": 8})
    heads: int = parameter(4, "attention heads per transformer block", low=1)
    width: int = parameter(
        96, "size of the residual stream, a multiple of heads", low=1, presets={"small": 48, "big": 512}
    )
    lr: float = parameter(0.003, "learning rate", low=0.0, presets={"big": 0.0006})
    seed: int = parameter(0, "decides the initial parameters and the order of the text", low=0)
    checkpoint_every: int = parameter(50, "steps between checkpoints; 0: never", low=0)
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/fsdp-gpt")


def shard_model(model: GPT) -> None:
    """Shards each block, then the rest: the embeddings and the last norm."""
    mesh = init_device_mesh(rankdeck.device().type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, starts: torch.Tensor, block: int) -> torch.Tensor:
    """Mean cross-entropy per character, in nats."""
    inputs, targets = (tensor.to(rankdeck.device()) for tensor in blocks_at(tokens, starts, block))
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model: GPT, text: Text, batch: int, block: int) -> float:
    """The loss on the held-out text. Every rank evaluates the same number of batches."""
    rank, world = dist.get_rank(), dist.get_world_size()
    starts = torch.arange(0, len(text.held_out) - block, block)[: 8 * batch]
    starts = starts[: len(starts) // world * world][rank::world]
    total = loss_of(model, text.held_out, starts, block)
    dist.all_reduce(total)
    return float(total) / world


def train(p: Parameters, text: Text) -> None:
    """Trains to `steps`, or to the step in which a signal arrived."""
    device, rank, world = rankdeck.device(), dist.get_rank(), dist.get_world_size()
    torch.manual_seed(p.seed)
    model = GPT(Shape(characters=len(text.characters), block=p.block, layers=p.layers, heads=p.heads, width=p.width))
    whole = sum(tensor.numel() for tensor in model.parameters())
    model.to(device)
    shard_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=p.lr)
    mine = sum(tensor.to_local().numel() for tensor in model.parameters())  # type: ignore[attr-defined]  # DTensors
    print(f"rank {rank} of {world} on {device}: holds {mine:,} of {whole:,} parameters")

    sharded = ShardedCheckpoint(checkpoint.folder("fsdp-gpt", p.checkpoint_dir), device)
    if step := sharded.read_training(model, optimizer, layers=p.layers):
        print(f"rank {rank}: resumes after step {step} of {p.steps}")
    shard = Shard(length=len(text.train), block=p.block, batch=p.batch // world, seed=p.seed, rank=rank, world=world)
    with StopSignal(device) as stop:
        while step < p.steps:
            loss = loss_of(model, text.train, shard.starts(step * p.batch), p.block)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            rankdeck.log(step=step, steps=p.steps, loss=loss, samples=p.batch // world)
            if rank == 0 and (step % 10 == 0 or step == p.steps):
                print(f"rank 0: step {step}/{p.steps}  loss {loss.item():.4f}")
            stopped = stop.agreed()
            if p.checkpoint_every and (stopped or step == p.steps or step % p.checkpoint_every == 0):
                sharded.write_training(step, model, optimizer, layers=p.layers)
            if stopped:
                stop.leave(stopped)
    found = held_out_loss(model, text, p.batch, p.block)
    if rank == 0:
        print(f"final loss {found:.4f}")


def main() -> None:
    p = read_parameters(Parameters)
    if p.width % p.heads:
        refuse(f"fsdp-gpt: --width {p.width} is not a multiple of --heads {p.heads}", ARGUMENTS)
    rankdeck.init_process_group()
    if p.batch % dist.get_world_size():
        refuse(f"fsdp-gpt: --batch {p.batch} is not a multiple of the {dist.get_world_size()} ranks", ARGUMENTS)
    text = read_text()
    longest = len(text.held_out) // 2
    if p.block > longest:
        refuse(f"fsdp-gpt: --block {p.block} is too long for this text: {longest} or less is needed", ARGUMENTS)
    train(p, text)
    gc.collect()  # the sharded model stands in cycles, which hold the process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
