"""Splits an MLP's matrices over ranks with DTensor, also in 2-D.

The ranks form a grid, a DeviceMesh of `data` rows and `tensor` columns. The
ranks of a row share one copy of the model; the ranks of a column hold the
same part of it and see different samples.

In each block (Megatron-LM's MLP) the first matrix is split by columns, so
each rank computes its own hidden units, and the activation needs no
communication. The second is split by rows: each rank has a summand of the
result, and one all-reduce adds them. Two matrices, one all-reduce forward
and one backward. `parallelize_module` replaces the parameters by DTensors
that communicate by themselves. The norms, and the layers before and after
the blocks, stay whole on every rank.

Over the columns of the grid the gradients are averaged by hand, as DDP
would do. Before it trains, the recipe compares the output of the split
model with that of the whole one.

What goes wrong in practice:
- The ranks of a row must see the same samples and start from the same seed.
  If not, the sums are of different things, and nothing fails.
- An all-reduce per block is on the critical path: tensor parallel belongs
  inside a node, data parallel between nodes. The last dimension of a mesh
  has neighbouring ranks.
- Throughput counts each sample once: only the first rank of a row reports
  samples.

Change: `--tensor` (1 is data parallel only), `--width`; split both matrices
by columns, and see what DTensor gathers.
"""

import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._sharded import ShardedCheckpoint
from rankdeck.recipes._spirals import ARMS, draw_spirals, held_out_spirals
from rankdeck.recipes._stop import StopSignal

TORCH = "2.6"


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(300, "optimizer steps in all", low=1, presets={"small": 60, "minute": 1000, "big": 3000})
    tensor: int = parameter(0, "ranks that share one copy of the model; 0: two if the number is even, else one", low=0)
    batch: int = parameter(96, "points per step over all ranks, a multiple of the rows", low=1, presets={"big": 1024})
    blocks: int = parameter(2, "blocks of two matrices each", low=1, presets={"big": 8})
    width: int = parameter(
        64, "hidden units of a block; the columns of ranks must divide it", low=1, presets={"big": 2048}
    )
    lr: float = parameter(0.005, "learning rate", low=0.0, presets={"big": 0.0005})
    seed: int = parameter(0, "decides the initial parameters and the points", low=0)
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0)
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/tensor-parallel")


class Block(nn.Module):
    """Two matrices whose result is added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 16) to the same."""
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return out


def whole_model(p: Parameters) -> nn.Sequential:
    """The model before it is split, the same on every rank."""
    torch.manual_seed(p.seed)
    blocks = [Block(p.width) for _ in range(p.blocks)]
    return nn.Sequential(nn.Linear(2, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, ARMS))


def split(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Splits each block over the ranks of a row."""
    for block in model:
        if isinstance(block, Block):
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Averages the gradients over a column, whose ranks hold the same part of the model."""
    for tensor in model.parameters():
        assert tensor.grad is not None
        local = tensor.grad.to_local() if isinstance(tensor.grad, DTensor) else tensor.grad
        dist.all_reduce(local, group=mesh.get_group("data"))
        local /= mesh["data"].size()


def train(p: Parameters, mesh: DeviceMesh) -> None:
    """Trains to `steps`, or to the step in which a signal arrived."""
    device, rank = rankdeck.device(), dist.get_rank()
    row, column = mesh.get_local_rank("data"), mesh.get_local_rank("tensor")
    whole = whole_model(p).to(device)
    model = split(copy.deepcopy(whole), mesh)
    points, arms = (tensor.to(device) for tensor in held_out_spirals(p.seed))
    with torch.no_grad():
        apart = float((model(points) - whole(points)).abs().max())
    mine = sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in model.parameters())
    total = sum(tensor.numel() for tensor in whole.parameters())
    print(f"rank {rank}: row {row}, column {column} of {mesh.shape}: holds {mine:,} of {total:,} parameters")
    if rank == 0:
        print(f"rank 0: split and whole model differ by {apart:.1e} at most")
    if apart > 1e-3:
        refuse("tensor-parallel: the split model computes something else than the whole one")

    optimizer = torch.optim.Adam(model.parameters(), lr=p.lr)
    sharded = ShardedCheckpoint(checkpoint.folder("tensor-parallel", p.checkpoint_dir), device)
    if begin := sharded.read_training(model, optimizer, blocks=p.blocks):
        print(f"rank {rank}: resumes after step {begin} of {p.steps}")
    share = p.batch // mesh["data"].size()
    with StopSignal(device) as stop:
        for step in range(begin + 1, p.steps + 1):
            x, y = (tensor[row * share :][:share].to(device) for tensor in draw_spirals(p.batch, seed_at(p.seed, step)))
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            average_gradients(model, mesh)
            optimizer.step()
            rankdeck.log(step=step, steps=p.steps, loss=loss, samples=share if column == 0 else 0)
            if rank == 0 and (step % 20 == 0 or step == p.steps):
                print(f"rank 0: step {step}/{p.steps}  loss {loss.item():.4f}")
            stopped = stop.agreed()
            if p.checkpoint_every and (stopped or step == p.steps or step % p.checkpoint_every == 0):
                sharded.write_training(step, model, optimizer, blocks=p.blocks)
            if stopped:
                stop.leave(stopped)
    with torch.no_grad():
        accuracy = float((model(points).argmax(1) == arms).float().mean())
    if rank == 0:
        print(f"final accuracy {accuracy:.3f}")


def main() -> None:
    p = read_parameters(Parameters)
    rankdeck.init_process_group()
    world = dist.get_world_size()
    tensor = p.tensor or (2 if world % 2 == 0 else 1)
    if world % tensor:
        refuse(f"tensor-parallel: {world} ranks do not make rows of --tensor {tensor}", ARGUMENTS)
    if p.width % tensor or p.batch % (world // tensor):
        refuse(
            f"tensor-parallel: --width {p.width} and --batch {p.batch} must be multiples of {tensor} and {world // tensor}",
            ARGUMENTS,
        )
    mesh = init_device_mesh(rankdeck.device().type, (world // tensor, tensor), mesh_dim_names=("data", "tensor"))
    train(p, mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
