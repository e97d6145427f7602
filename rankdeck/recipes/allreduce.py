"""Measures latency and bandwidth of collectives over sizes.

Bandwidths are those that nccl-tests defines. Each call comes after a
barrier, and its time is that of the slowest rank. The first call of each
size is checked: a wrong result ends the run. Rank 0 prints the results, and
reports them by `rankdeck.log` with the names in `docs/bench.md`.
`rankdeck bench` and the app show them.

Compare the small sizes, where latency decides, with the large ones, where
bandwidth does: a training with many small gradients depends on the first
part of the table.

Change: `--collectives all`, `--dtype bfloat16`, the number of ranks, the
backend.

What goes wrong in practice: on a machine that does other work, or with more
ranks than cores, the times of one run mean little. On a GPU a call returns
before it is done, so a clock that does not wait for the GPU measures
nothing. The first call of a size sets up connections and buffers, and is
slower: it does not count here.

It keeps no checkpoint: a restart measures everything again, since times
from before and after it could not be compared.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

import rankdeck
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._collectives import COLLECTIVES, DTYPES, Case
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._sizes import parse_sizes, size_text
from rankdeck.recipes._stop import StopSignal
from rankdeck.recipes._timings import HEADING, Timing, summarize

FEWEST, MOST = 5, 2000  # calls that count, of one collective on one size: fewer say nothing, more say nothing new

NOT_THERE = ("support", "implement", "not available", "no backend")
"""Words of an error by which a backend says that it lacks a collective."""


@dataclass(frozen=True)
class Parameters:
    collectives: str = parameter(
        "all_reduce",
        "all, or some of all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,sendrecv,barrier",
        pattern="all|(all_reduce|all_gather|reduce_scatter|broadcast|all_to_all|sendrecv|barrier)"
        "(,(all_reduce|all_gather|reduce_scatter|broadcast|all_to_all|sendrecv|barrier))*",
        presets={"small": "all_reduce", "minute": "all_reduce", "big": "all"},
    )
    sizes: str = parameter(
        "4:64M:x4",
        "bytes, such as 4:400M (doubling), 4:400M:x8, or 4,1K,2G; K, M and G are powers of 1024",
        pattern="[0-9]{1,12}[KMGkmg]?(:[0-9]{1,12}[KMGkmg]?(:x[0-9]{1,12})?|(,[0-9]{1,12}[KMGkmg]?)*)",
        presets={"small": "4:1M:x8", "big": "4:1G"},
    )
    dtype: str = parameter(
        "float32", "type of the elements", choices=("float32", "float64", "float16", "bfloat16", "int32", "int64")
    )
    seconds: float = parameter(
        0.5,
        "how long one collective on one size is repeated",
        low=0.001,
        unit="seconds",
        presets={"small": 0.1, "minute": 4.0},
    )
    warmup: int = parameter(3, "calls before those that count", low=1, unit="calls")


def check(args: Parameters) -> list[int]:
    """The sizes, in bytes."""
    try:
        return parse_sizes(args.sizes)
    except ValueError as error:
        refuse(f"allreduce: --sizes {args.sizes}: {error}", ARGUMENTS)


class Bench:
    def __init__(self, args: Parameters, device: torch.device) -> None:
        self._args, self._device = args, device
        self._dtype = DTYPES[args.dtype]

    def cases(self, name: str, sizes: list[int]) -> Iterator[Case]:
        """The sizes that a collective has, rising: for many ranks small ones are the same, and a barrier has none."""
        before = -1
        for size in sizes:
            case = COLLECTIVES[name].make(size, self._dtype, self._device)
            if case.size > before:
                before = case.size
                yield case

    def lacks(self, name: str) -> str:
        """Why this backend or layout has no such collective; empty where it has."""
        least = COLLECTIVES[name].least
        if dist.get_world_size() < least:
            return f"{least} ranks are needed"
        try:
            COLLECTIVES[name].make(1, self._dtype, self._device).call()
        except (RuntimeError, NotImplementedError) as error:
            said = str(error)
            if not any(word in said.lower() for word in NOT_THERE):
                raise
            return said.strip().split("\n")[0]
        return ""

    def measure(self, name: str, case: Case) -> Timing:
        """Checks, warms up and measures one collective on one size. A collective: all ranks call it. Raises SystemExit: a rank got a
        wrong result; every rank raises it."""
        case.fill()
        self._timed(case)
        wrong = self._highest([0.0 if case.is_right() else dist.get_rank() + 1.0])[0]
        if wrong:
            what = f"{name} of {size_text(case.size)} ({case.size} bytes) in {self._args.dtype}"
            refuse(f"allreduce: {what} over {dist.get_backend()} gave rank {int(wrong) - 1} a wrong result")
        for buffer in case.buffers:
            buffer.zero_()  # sums of sums would soon be infinite
        for _ in range(self._args.warmup):
            self._timed(case)
        times: list[float] = []
        spent, batch = 0.0, FEWEST
        while batch > 0:
            began = time.perf_counter()
            mine = [self._timed(case) for _ in range(batch)]
            # Agreed on, like the times: all ranks must come to the same number of calls.
            *slowest, took = self._highest([*mine, time.perf_counter() - began])
            times += slowest
            spent += took
            batch = min(len(times), MOST - len(times), int((self._args.seconds - spent) / spent * len(times)))
        return summarize(name, case.size, dist.get_world_size(), times)

    def _timed(self, case: Case) -> float:
        """Seconds of one call, which begins where all ranks are."""
        dist.barrier()
        self._wait_device()
        began = time.perf_counter()
        case.call()
        self._wait_device()
        return time.perf_counter() - began

    def _wait_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _highest(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        found: list[float] = tensor.tolist()
        return found


def run(args: Parameters, sizes: list[int]) -> None:
    """Measures all that was asked for, or until a signal arrives."""
    device, rank = rankdeck.device(), dist.get_rank()
    bench = Bench(args, device)
    names = list(COLLECTIVES) if args.collectives == "all" else list(dict.fromkeys(args.collectives.split(",")))
    step, steps = 0, sum(1 if name == "barrier" else len(sizes) for name in names)
    world = dist.get_world_size()
    ranks = f"{world} rank{'s' if world > 1 else ''}"
    say(f"{ranks}, {dist.get_backend()} on {device.type}, {args.dtype}; times are of the slowest rank")
    with StopSignal(device) as stop:
        for name in names:
            if why := bench.lacks(name):
                say(f"\n{name}: not measured: {why}")
                steps -= 1 if name == "barrier" else len(sizes)
                continue
            say(f"\n{name}\n{HEADING}")
            last = step
            for case in bench.cases(name, sizes):
                found = bench.measure(name, case)
                step += 1
                rankdeck.log(step=step, steps=steps, **(found.record(args.dtype) if rank == 0 else {}))
                say(found.line())
                if stopped := stop.agreed():
                    say(f"stopped by a signal after {name} of {size_text(case.size)}")
                    stop.leave(stopped)
            if name != "barrier":
                steps -= len(sizes) - (step - last)  # sizes that came to the same
    say("\ndone: every result was right")


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text)


def main() -> None:
    args = read_parameters(Parameters)
    sizes = check(args)
    rankdeck.init_process_group()
    run(args, sizes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
