"""Joins a process group, says who is there, and leaves again.

Every distributed program begins like this. A launcher (rankdeck, torchrun,
mpirun) starts the same script several times and tells each process its rank
in environment variables. The ranks then meet at a store, a small server of
keys and values, and form a process group. `--init` sets the address of the
store:

    env://           at MASTER_ADDR and MASTER_PORT, as the launcher has set
                     them
    tcp://HOST:PORT  at this address, where rank 0 listens
    file:///path     in a file on a disk that all ranks share

Without a launcher, run the script in two terminals with
`--init tcp://127.0.0.1:29500 --world-size 2` and `--rank 0` or `--rank 1`.
They use gloo: nothing says which GPU is whose (a launcher sets LOCAL_RANK).

What goes wrong in practice: a rank is missing, and the others wait for it
until the timeout. The port is taken by another job. MASTER_ADDR is an
address that the other nodes can't reach. The file is left from an earlier
run: name a new one each time. `new_group` is called by the members only: it
is a collective, and all ranks must call it, in the same order.

It keeps no checkpoint: a restart begins again.
"""

import os
import signal
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

import rankdeck
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._refusal import ARGUMENTS, refuse


@dataclass(frozen=True)
class Parameters:
    init: str = parameter(
        "env://",
        "where the ranks meet: env://, tcp://HOST:PORT or file:///path",
        pattern=r"env://|tcp://\S+:\d+|file:///.+",
    )
    rank: int = parameter(-1, "this process's rank for tcp:// and file://; -1: $RANK", low=-1)
    world_size: int = parameter(-1, "number of ranks for tcp:// and file://; -1: $WORLD_SIZE", low=-1, unit="ranks")


def join(parameters: Parameters) -> None:
    """Joins the default process group. Raises SystemExit: nothing says which rank this is."""
    if parameters.init == "env://" or "mpi" in os.environ.get("RANKDECK_BACKEND", ""):
        rankdeck.init_process_group()  # MPI has its own way to meet, and needs neither address nor file
        return
    rank = parameters.rank if parameters.rank >= 0 else int(os.environ.get("RANK", "-1"))
    world = parameters.world_size if parameters.world_size > 0 else int(os.environ.get("WORLD_SIZE", "-1"))
    if not 0 <= rank < world:
        refuse(
            f"hello: --init {parameters.init} needs to know who this is: give --rank from 0 and --world-size above it, "
            "or use a launcher that sets RANK and WORLD_SIZE",
            ARGUMENTS,
        )
    backend = None if os.environ.keys() & {"LOCAL_RANK", "RANKDECK_BACKEND"} else "gloo"
    rankdeck.init_process_group(backend, init_method=parameters.init, rank=rank, world_size=world)


def meet_evens(rank: int, world: int, device: torch.device) -> None:
    """Makes a group of the even ranks, which add up their numbers among themselves."""
    members = list(range(0, world, 2))
    evens = dist.new_group(members)  # odd ranks call it too, and are not in it
    if rank in members:
        total = torch.tensor([rank], device=device)
        dist.all_reduce(total, group=evens)
        place, size = dist.get_rank(evens), dist.get_world_size(evens)
        print(f"rank {rank}: rank {place} of {size} in the group of the even ranks, which add up to {int(total)}")


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    join(parameters)
    rank, world, device = dist.get_rank(), dist.get_world_size(), rankdeck.device()
    local_rank, local_world = (os.environ.get(name, "not set") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    print(f"rank {rank} of {world} on {socket.gethostname()}: backend {dist.get_backend()}, device {device}")
    print(f"rank {rank}: LOCAL_RANK is {local_rank}, LOCAL_WORLD_SIZE is {local_world}")
    rankdeck.log(step=1, steps=3)

    dist.barrier()  # nobody passes before all have come
    if rank == 0:
        print(f"rank 0: all {world} ranks have come to the barrier")
    rankdeck.log(step=2, steps=3)

    meet_evens(rank, world, device)
    rankdeck.log(step=3, steps=3)
    dist.destroy_process_group()  # all groups; without it, ranks that end early look to the others as if they had died
    print(f"rank {rank}: has left the process group")


if __name__ == "__main__":
    main()
