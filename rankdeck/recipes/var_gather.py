"""Gathers tensors of different sizes from all ranks in two ways.

`all_gather` needs tensors of one shape on all ranks. But detections, tokens
or the last batch of an evaluation have another length on each rank. There
are two ways:

    padded      exchange the lengths, fill every tensor up to the longest,
                all_gather, and cut the filling off
    broadcasts  exchange the lengths, then one broadcast from each rank,
                each of its own size

The first is two collectives, however many ranks there are, but sends every
rank the filling too. The second sends no filling, but is as many
collectives as there are ranks, one after the other. A table shows what each
costs. Try `--skew 1` (no filling) and `--skew 20` (one rank has most of the
rows), more ranks, and few rows or many.

What goes wrong in practice: `all_gather` with tensors of different shapes,
for which some backends return wrong data or crash instead of raising an
error. A rank with nothing at all that skips the call: it must take part,
with an empty tensor. Gathering on all ranks what only rank 0 needs
(`gather`), or objects by pickle (`all_gather_object`), which is much slower
than tensors.

It keeps no checkpoint: a restart measures both ways again.
"""

import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

import rankdeck
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import refuse
from rankdeck.recipes._seeds import seed_at


@dataclass(frozen=True)
class Parameters:
    rows: int = parameter(
        1000, "rows that most ranks have", low=0, unit="rows", presets={"small": 10, "minute": 1000, "big": 100000}
    )
    columns: int = parameter(64, "numbers in a row", low=1)
    skew: float = parameter(5.0, "how many times as many rows the last rank has", low=0.0)
    repeat: int = parameter(20, "measured calls of each way", low=1, presets={"small": 3, "minute": 3000})
    seed: int = parameter(0, "decides the numbers")


def rows_of(parameters: Parameters, rank: int) -> torch.Tensor:
    """The rows of a rank. Every rank can make those of the others too, and so check what it gets."""
    is_last = rank == dist.get_world_size() - 1
    count = int(parameters.rows * parameters.skew) if is_last else parameters.rows + rank
    generator = torch.Generator().manual_seed(seed_at(parameters.seed, rank))
    return torch.randn(count, parameters.columns, generator=generator).to(rankdeck.device())


def lengths_of_all(mine: torch.Tensor) -> list[int]:
    found = [torch.zeros(1, dtype=torch.int64, device=mine.device) for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.tensor([len(mine)], device=mine.device))
    return [int(one) for one in found]


def padded(mine: torch.Tensor) -> list[torch.Tensor]:
    """One all_gather of tensors that are filled up to the longest."""
    lengths = lengths_of_all(mine)
    filled = mine.new_zeros(max(lengths), mine.shape[1])
    filled[: len(mine)] = mine
    found = [torch.empty_like(filled) for _ in lengths]
    dist.all_gather(found, filled)
    return [one[:length] for one, length in zip(found, lengths)]


def broadcasts(mine: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for rank, length in enumerate(lengths_of_all(mine)):
        found.append(mine if rank == dist.get_rank() else mine.new_empty(length, mine.shape[1]))
        if length:
            dist.broadcast(found[-1], src=rank)
    return found


WAYS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {"padded": padded, "broadcasts": broadcasts}


def measure(way: str, mine: torch.Tensor, repeat: int) -> float:
    """Milliseconds of one call on the slowest rank: the median of several."""
    times = torch.zeros(repeat, dtype=torch.float64, device=mine.device)
    for number in range(repeat):
        dist.barrier()
        began = time.perf_counter()
        WAYS[way](mine)
        if mine.is_cuda:
            torch.cuda.synchronize(mine.device)
        times[number] = time.perf_counter() - began
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return 1000 * float(statistics.median(times.tolist()))


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    rankdeck.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = rows_of(parameters, rank)
    lengths = lengths_of_all(mine)
    row = parameters.columns * mine.element_size() / 1000
    useful = sum(lengths) * row
    if rank == 0:
        print(f"rows: {', '.join(map(str, lengths))}; {useful:,.1f} kB in all")
        print("way              kB on each rank  useful    ms a call")
    for step, way in enumerate(WAYS, 1):
        found = WAYS[way](mine)
        wrong = sum(not torch.equal(one, rows_of(parameters, other)) for other, one in enumerate(found))
        wrongs = torch.tensor([wrong], device=mine.device)
        dist.all_reduce(wrongs)
        if int(wrongs):
            refuse(f"var-gather: {way} over {dist.get_backend()} gave a wrong result")
        sent = max(lengths) * world * row if way == "padded" else useful
        took = measure(way, mine, parameters.repeat)
        rankdeck.log(step=step, steps=len(WAYS), way=way, milliseconds=took)
        if rank == 0:
            print(f"{way:<12}{sent:20,.1f}{useful / sent if sent else 1:8.0%}{took:13.3f}")
    dist.destroy_process_group()
    if rank == 0:
        print("done: every result was right")


if __name__ == "__main__":
    main()
