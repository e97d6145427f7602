"""Draws who had what before and after each collective.

A collective is a call that all ranks of a group make together, in the same
order, with tensors of the same shape. Each picture has one line for each
rank, with what it had before and what it has after. Every result is
checked.

Try another number of ranks, or another backend, and one collective alone
with `--only all_to_all`.

What goes wrong in practice: one rank skips a call (an `if rank == 0` around
it), and the others wait until the timeout; `rankdeck stacks` and the app's
`t` show who waits for whom. Shapes or types differ between ranks, which
some backends report; others return wrong data. A tensor is read before the
`wait()` of its asynchronous call. If two ranks both `send` first and then
`recv`, large messages make both wait forever: let one of them use `isend`.
Object collectives use pickle: take objects only from ranks that you trust,
and tensors for whatever is large.

It keeps no checkpoint: a restart draws all of them again.
"""

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import rankdeck
from rankdeck._torch_compat import receive_objects_without_numpy
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import refuse

# Older torch has it by its older name only.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Parameters:
    only: str = parameter("all", "the one collective to draw", choices=(
        "all", "broadcast", "scatter", "gather", "all_gather", "reduce", "all_reduce_sum", "all_reduce_product",
        "all_reduce_min", "all_reduce_max", "all_reduce_average", "reduce_scatter", "all_to_all", "send_recv",
        "isend_irecv", "broadcast_object_list", "all_gather_object",
    ))  # fmt: skip


class Picture(NamedTuple):
    """One rank's line of a picture, and what it should be."""

    before: Any
    after: Any
    expected: Any


Draw = Callable[[int, int], Picture]  # runs one collective, given this rank and the number of ranks


def tensor(*values: int) -> torch.Tensor:
    """Numbers on this rank's device."""
    return torch.tensor(values, device=rankdeck.device())


def blank(count: int) -> list[torch.Tensor]:
    """Room for one number of each rank."""
    return [tensor(-1) for _ in range(count)]


def broadcast(rank: int, world: int) -> Picture:
    """Rank 0 gives all ranks what it has."""
    mine = tensor(7, 8) if rank == 0 else tensor(0, 0)
    before = mine.tolist()
    dist.broadcast(mine, src=0)
    return Picture(before, mine.tolist(), [7, 8])


def scatter(rank: int, world: int) -> Picture:
    """Rank 0 gives each rank one part of a list."""
    parts = [tensor(10 * one) for one in range(world)] if rank == 0 else None
    mine = tensor(-1)
    dist.scatter(mine, parts, src=0)
    return Picture(torch.cat(parts).tolist() if parts else None, int(mine), 10 * rank)


def gather(rank: int, world: int) -> Picture:
    """Rank 0 gets one tensor of each rank: the opposite of scatter."""
    parts = blank(world) if rank == 0 else None
    dist.gather(tensor(10 * rank), parts, dst=0)
    after = torch.cat(parts).tolist() if parts else None
    return Picture(10 * rank, after, [10 * one for one in range(world)] if rank == 0 else None)


def all_gather(rank: int, world: int) -> Picture:
    """Every rank gets one tensor of each rank."""
    parts = blank(world)
    dist.all_gather(parts, tensor(10 * rank))
    return Picture(10 * rank, torch.cat(parts).tolist(), [10 * one for one in range(world)])


def reduce(rank: int, world: int) -> Picture:
    """Rank 0 gets the sum of all ranks. The result on other ranks is undefined."""
    mine = tensor(rank + 1)
    dist.reduce(mine, dst=0)
    return Picture(rank + 1, int(mine) if rank == 0 else "?", world * (world + 1) // 2 if rank == 0 else "?")


def reduced(says: str, operation: dist.ReduceOp.RedOpType, combine: Callable[[list[int]], int]) -> Draw:
    """An all_reduce of a small number of each rank; `says` describes it."""

    def picture(rank: int, world: int) -> Picture:
        mine = tensor(rank % 4 + 1)  # products stay small
        dist.all_reduce(mine, operation)
        return Picture(rank % 4 + 1, int(mine), combine([one % 4 + 1 for one in range(world)]))

    picture.__doc__ = says
    return picture


def all_reduce_average(rank: int, world: int) -> Picture:
    """A sum, divided by the number of ranks. Backends that have `ReduceOp.AVG` do both at once."""
    mine = torch.tensor([float(rank)], device=rankdeck.device())
    dist.all_reduce(mine)
    return Picture(float(rank), float(mine / world), (world - 1) / 2)


def reduce_scatter(rank: int, world: int) -> Picture:
    """Lists are added up, and each rank keeps one element of the sum. FSDP averages gradients so."""
    whole, mine = tensor(*(rank + 10 * one for one in range(world))), tensor(-1)
    reduce_scatter_single(mine, whole)
    return Picture(whole.tolist(), int(mine), world * (world - 1) // 2 + 10 * rank * world)


def all_to_all(rank: int, world: int) -> Picture:
    """Each rank gives each other rank one element: a transposed table. Mixtures of experts send tokens so."""
    whole, mine = tensor(*(10 * rank + one for one in range(world))), tensor(*([-1] * world))
    dist.all_to_all_single(mine, whole)
    return Picture(whole.tolist(), mine.tolist(), [10 * one + rank for one in range(world)])


def send_recv(rank: int, world: int) -> Picture:
    """Rank 0 sends to rank 1, which waits for it. The others have nothing to do."""
    mine = tensor(5 if rank == 0 else 0)
    if rank == 0 and world > 1:
        dist.send(mine, dst=1)
    elif rank == 1:
        dist.recv(mine, src=0)
    return Picture(5 if rank == 0 else 0, int(mine), 5 if rank < 2 else 0)


def isend_irecv(rank: int, world: int) -> Picture:
    """Each rank sends to the next one in a ring, and receives meanwhile. Both are over only after `wait`."""
    mine, received = tensor(rank), tensor(rank if world == 1 else -1)
    if world > 1:
        after, before = (rank + 1) % world, (rank - 1) % world
        moves = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
    return Picture(rank, int(received), (rank - 1) % world)


def broadcast_object_list(rank: int, world: int) -> Picture:
    """Rank 0 gives all ranks Python objects."""
    box = [{"lr": 0.1}] if rank == 0 else [None]
    before = box[0]
    dist.broadcast_object_list(box, src=0, device=rankdeck.device())
    return Picture(before, box[0], {"lr": 0.1})


def all_gather_object(rank: int, world: int) -> Picture:
    """Every rank gets one object of each rank."""
    found: list[Any] = [None] * world
    dist.all_gather_object(found, "x" * (rank + 1))
    return Picture("x" * (rank + 1), found, ["x" * (one + 1) for one in range(world)])


PICTURES: dict[str, Draw] = {
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "all_gather": all_gather,
    "reduce": reduce,
    "all_reduce_sum": reduced("All ranks get the sum. DDP adds up gradients so.", dist.ReduceOp.SUM, sum),
    "all_reduce_product": reduced("All ranks get the product.", dist.ReduceOp.PRODUCT, math.prod),
    "all_reduce_min": reduced("All ranks get the smallest: 1 if all of them say 1 for yes.", dist.ReduceOp.MIN, min),
    "all_reduce_max": reduced("All ranks get the largest: 1 if any of them says 1 for yes.", dist.ReduceOp.MAX, max),
    "all_reduce_average": all_reduce_average,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send_recv": send_recv,
    "isend_irecv": isend_irecv,
    "broadcast_object_list": broadcast_object_list,
    "all_gather_object": all_gather_object,
}


def lines_of_all(line: str, world: int) -> list[str]:
    """Every rank's line, on every rank: an all_gather of text, padded to the longest."""
    data = line.encode("utf-8")
    longest = tensor(len(data))
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = tensor(*data.ljust(int(longest)))
    found = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(found, padded)
    return [bytes(one.tolist()).decode("utf-8").rstrip() for one in found]


def show(name: str, rank: int, world: int) -> bool:
    """Runs one collective, and draws it on rank 0. Returns whether all ranks have what they should."""
    picture = PICTURES[name](rank, world)
    verdict = "" if picture.after == picture.expected else f"   wrong: {picture.expected} is right"
    before, after = ("-" if one is None else str(one) for one in picture[:2])
    lines = lines_of_all(f"{before}\t{after}{verdict}", world)
    if rank == 0:
        print(f"\n{name}: {PICTURES[name].__doc__}")
        width = max(len(line.partition("\t")[0]) for line in lines)
        for number, line in enumerate(lines):
            left, _, right = line.partition("\t")
            print(f"  rank {number}   {left:<{width}}  ->  {right}")
    return all("wrong: " not in line for line in lines)


def main() -> None:
    only = read_parameters(Parameters).only
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    rankdeck.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    receive_objects_without_numpy()
    names = [*PICTURES] if only == "all" else [only]
    for step, name in enumerate(names, 1):
        if not show(name, rank, world):
            refuse(f"collectives: {name} over {dist.get_backend()} gave a wrong result")
        rankdeck.log(step=step, steps=len(names))
    dist.destroy_process_group()
    if rank == 0:
        print(f"\ndone: collectives drawn: {len(names)}, every result was right")


if __name__ == "__main__":
    main()
