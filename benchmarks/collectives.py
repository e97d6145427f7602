"""Collectives over the backends mpi and ucc beside gloo, the bare blocking calls of mpi4py, and a copy in memory: in one job, in turns.

The first table has microseconds of a synchronous call (of the best round, since what else the machine does only adds), how our backends compare with the bare call and
with gloo (times as fast), and how long copying the buffer takes, which no collective can undercut. A size is that of the larger buffer of a
collective: what comes out of an all-gather, what goes into a reduce-scatter. The second has steps of DistributedDataParallel.
Where the Python that runs this finds no libucc, `--python` may name one that does; without, ucc is left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.backends.mpi import settings  # noqa: E402 - of this tree
from engine.core.errors import CheckError  # noqa: E402
from engine.gate import LAUNCHED  # noqa: E402

PROBE = ROOT / "rankdeck/c10d/_ucc/library.py"

SIZES = (4, 1024, 1 << 16, 1 << 20, 1 << 24, 400_000_000)
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
ROUND = 0.1  # seconds that a peer is measured in one round, more or less
STEPS = 0.5  # the same for training steps
Row = dict[str, float]  # microseconds, by peer


# --- in a rank ----------------------------------------------------------------------------------------------------------------


def floats(tensor: Any, items: int) -> list[Any]:
    """A tensor as an argument of mpi4py."""
    from mpi4py import MPI

    return [MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel() * 4), items, MPI.FLOAT]


def calls(name: str, size: int, groups: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """What is measured: one collective on one size, by peer."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    world = dist.get_world_size()
    share = max(1, size // 4 // world)
    count = max(1, size // 4) if name in ("all_reduce", "broadcast") else share * world
    whole, part, copy = torch.zeros(count), torch.zeros(share), torch.zeros(count)
    dealt_out = floats(copy, share)

    comm, all_of_it = groups["comm"], floats(whole, count)
    dealt, mine = floats(whole, share), floats(part, share)
    in_place: Any = MPI.IN_PLACE
    raw: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.Allreduce(in_place, all_of_it),
        "broadcast": lambda: comm.Bcast(all_of_it),
        "all_gather": lambda: comm.Allgather(mine, dealt),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(dealt, mine),
        "all_to_all": lambda: comm.Alltoall(dealt, dealt_out),
    }
    # The names before torch 2.13 would warn at each call, which takes its time.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    backend: dict[str, Callable[[Any], object]] = {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather": lambda group: all_gather(whole, part, group=group),
        "reduce_scatter": lambda group: reduce_scatter(part, whole, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(copy, whole, group=group),
    }
    ours: dict[str, Callable[[], object]] = {}
    ours |= {peer: functools.partial(backend[name], groups[peer]) for peer in ("mpi", "ucc") if peer in groups}
    return {
        **ours,
        "mpi4py": raw[name],
        "gloo": lambda: backend[name](groups["gloo"]),
        "memcpy": lambda: copy.copy_(whole),
    }


def measure(peers: dict[str, Callable[[], object]], comm: Any, rounds: int, seconds: float = ROUND) -> Row:
    """Times of all peers, in turns: what else the machine does meets all of them."""
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    repeats = {}
    for peer, call in peers.items():
        call()
        comm.Barrier()
        began = time.perf_counter()
        call()
        repeats[peer] = comm.bcast(max(2, min(2000, int(seconds / (time.perf_counter() - began + 1e-6)))))
    for _ in range(rounds):
        for peer, call in peers.items():
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(repeats[peer]):
                call()
            times[peer].append((time.perf_counter() - began) / repeats[peer] * 1e6)
    return {peer: min(found) for peer, found in times.items()}


def steps(groups: dict[str, Any], rounds: int) -> Row:
    """A step of DDP over eight layers of 1024 x 1024, in microseconds; with hooks that show what bounds it, and without DDP."""
    import torch
    from mpi4py import MPI
    from torch.nn.parallel import DistributedDataParallel

    def step(model: Any, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    peers: dict[str, Callable[[], object]] = {}

    def reduced(bucket: Any) -> Any:
        """By the bare blocking call, in the thread of the backward pass."""
        groups["comm"].Allreduce(MPI.IN_PLACE, floats(bucket.buffer(), bucket.buffer().numel()))
        return untouched(bucket)

    def untouched(bucket: Any) -> Any:
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(bucket.buffer())
        return done

    hooks = {"mpi4py": reduced, "nothing": untouched}
    for peer in ("mpi", *(["ucc"] if "ucc" in groups else []), "mpi4py", "gloo", "nothing", "alone"):
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
        if peer != "alone":
            model = DistributedDataParallel(model, process_group=groups["mpi" if peer in hooks else peer])
        if peer in hooks:
            model.register_comm_hook(hooks[peer], lambda hook, bucket: hook(bucket))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        peers[peer] = functools.partial(step, model, optimizer, torch.randn(32, 1024))
    return measure(peers, groups["comm"], rounds, STEPS)


def run_rank(options: argparse.Namespace) -> None:
    """Measures everything; rank 0 writes what it found."""
    import warnings

    import torch
    import torch.distributed as dist

    import rankdeck.c10d.mpi
    import rankdeck.c10d.ucc  # noqa: F401 - so that torch knows them

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    limit = timedelta(seconds=300)
    dist.init_process_group("cpu:mpi", f"file://{options.rank}.store", limit, rank=rank, world_size=world)
    from mpi4py import MPI

    groups = {"mpi": dist.group.WORLD, "gloo": dist.new_group(backend="gloo"), "comm": MPI.COMM_WORLD.Dup()}
    if options.with_ucc:
        groups["ucc"] = dist.new_group(backend="ucc")
    found: dict[str, Any] = {"collectives": {}, "ddp step": steps(groups, options.rounds)}
    for name in options.collectives:
        found["collectives"][name] = {
            size: measure(calls(name, size, groups), groups["comm"], options.rounds) for size in options.sizes
        }
    if rank == 0:
        Path(options.rank).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# --- in front of them ---------------------------------------------------------------------------------------------------------


def find_mpirun() -> tuple[str, str]:
    """Open MPI's `mpirun`, on PATH or as `make` has installed it, and the folder of its library if ranks do not find that themselves."""
    if path := shutil.which("mpirun.openmpi"):
        return path, ""
    try:
        found = settings(one_machine=True, permit=LAUNCHED)
    except CheckError as error:
        sys.exit(f"{error.message}; {error.hint}")
    assert found.mpi is not None
    if found.mpi.implementation != "openmpi":
        sys.exit(f"{found.mpi.path} is not Open MPI; install the package openmpi-bin")
    return found.mpi.path, found.library_path


def run_job(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """One job of so many ranks."""
    with tempfile.TemporaryDirectory(prefix="collectives") as folder:
        results = Path(folder) / "results"
        mpirun, library_path = find_mpirun()
        argv = [mpirun, "-np", str(ranks), "--oversubscribe", options.python, __file__, "--rank", str(results)]
        argv += ["--with-ucc"] if options.with_ucc else []
        argv += [
            "--rounds",
            str(options.rounds),
            "--sizes",
            *map(str, options.sizes),
            "--collectives",
            *options.collectives,
        ]
        environment = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": str(int(ranks > len(os.sched_getaffinity(0)))),
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "self,sm,tcp",
            "UCX_NET_DEVICES": "lo",
            **({"LD_LIBRARY_PATH": library_path} if library_path else {}),
        }
        subprocess.run(argv, check=True, env={**os.environ, **environment}, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(results.read_text())
        return found


def show(ranks: int, found: dict[str, Any]) -> None:
    """The tables of one job."""
    peers = ("mpi", *(["ucc"] if "ucc" in found["ddp step"] else []), "mpi4py", "gloo", "memcpy")
    print(f"\n{ranks} ranks on {len(os.sched_getaffinity(0))} cores, microseconds")
    print(
        f"  {'':15}{'bytes':>11}{''.join(f'{peer:>12}' for peer in peers)}   mpi4py/mpi   gloo/mpi"
        + ("   gloo/ucc   mpi/ucc" if "ucc" in peers else "")
    )
    for name, rows in found["collectives"].items():
        for size, row in rows.items():
            times = "".join(f"{row[peer]:12.1f}" for peer in peers)
            ratios = f"{row['mpi4py'] / row['mpi']:13.2f}{row['gloo'] / row['mpi']:11.2f}"
            if "ucc" in row:
                ratios += f"{row['gloo'] / row['ucc']:11.2f}{row['mpi'] / row['ucc']:10.2f}"
            print(f"  {name:15}{int(size):11}{times}{ratios}")
    row = found["ddp step"]
    print(
        f"  a DDP step: gloo {row['gloo']:.0f}, a bare Allreduce as its hook {row['mpi4py']:.0f}, a hook that does nothing "
        f"{row['nothing']:.0f}, without DDP {row['alone']:.0f}",
        end="",
    )
    for peer in ("mpi", "ucc"):
        if peer in row:
            print(f"; {peer} {row[peer]:.0f}, {row['gloo'] / row[peer]:.2f} times as fast as gloo", end="")
    print()


def main() -> None:
    """Prints tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="of the ranks: one that finds libucc, say")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--with-ucc", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options)
        return
    options.with_ucc = subprocess.run([options.python, PROBE], check=False, stdout=sys.stderr).returncode == 0
    found = {ranks: run_job(ranks, options) for ranks in options.ranks}
    if options.json:
        print(json.dumps(found))
        return
    for ranks, results in found.items():
        show(ranks, results)


if __name__ == "__main__":
    main()
