"""Starts processes inside a rank with torch.multiprocessing.

Each rank tries a learning rate of its own: rank 0 the one of `--lr`, each
next rank twice that of the one before. It trains with several processes,
which have a process group of their own, inside the rank. Then the ranks
compare what they have found.

`mp.spawn` starts a function in new processes, and `mp.start_processes` in
other ways too. `--start-method` says how:

    spawn       a new Python each, which imports everything again: seconds,
                but always safe
    forkserver  copies of one such Python
    fork        copies of this process: at once, but only before it has
                threads, CUDA or a process group

So the children come first here, and the rank joins the group of the ranks
after they have ended.

With `--checkpoint-every` process 0 of each rank writes a checkpoint into a
folder of that rank, and a restart goes on from there.

What goes wrong in practice: the children inherit RANK, WORLD_SIZE and
MASTER_PORT, which describe the rank and not them. Launchers set
TORCHELASTIC_USE_AGENT_STORE as well: with it no process hosts a store for
`env://` or `tcp://`, and children that meet so wait until the timeout;
these meet in a file. The script has no `if __name__ == "__main__"`: with
spawn, each child runs it and starts children. The function or its arguments
can't be pickled (a lambda, an open file). On GPUs, all children use the
rank's one.
"""

import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume
from rankdeck.recipes._line import FEATURES, draw_batch


@dataclass(frozen=True)
class Parameters:
    processes: int = parameter(
        2, "processes inside each rank", low=1, unit="processes", presets={"small": 1, "minute": 2, "big": 8}
    )
    start_method: str = parameter("spawn", "how they are started", choices=("spawn", "forkserver", "fork"))
    steps: int = parameter(100, "optimizer steps", low=1, presets={"small": 20, "minute": 5000, "big": 100000})
    batch: int = parameter(16, "samples per process and step", low=1, unit="samples")
    lr: float = parameter(0.0125, "learning rate of rank 0", low=0.0)
    seed: int = parameter(0, "decides the data and the initial parameters")
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/spawn")


def work(number: int, parameters: Parameters, lr: float, folder: str, kept: Path) -> None:
    """The work of each process. Process 0 writes the loss into a file of `folder`."""
    count = parameters.processes
    torch.manual_seed(parameters.seed)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    init = f"file://{folder}/store"
    rankdeck.init_process_group("gloo", init_method=init, rank=number, world_size=count)
    saved = resume(kept, torch.device("cpu")) or {"step": 0, "loss": torch.zeros(()), "model": model.state_dict()}
    model.load_state_dict(saved["model"])
    mean = saved["loss"]
    for step in range(saved["step"] + 1, parameters.steps + 1):
        x, y = draw_batch(parameters.seed, step, parameters.batch)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for weights in model.parameters():
            assert weights.grad is not None
            dist.all_reduce(weights.grad)
            weights.grad /= count
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= count
        if number == 0:  # the file of metrics is that of the rank
            rankdeck.log(step=step, steps=parameters.steps, loss=mean, samples=parameters.batch * count, lr=lr)
            every = parameters.checkpoint_every
            if every and (step % every == 0 or step == parameters.steps):
                checkpoint.save(kept, step, {"model": model.state_dict(), "loss": mean})
    if number == 0:
        Path(folder, "loss").write_text(repr(mean.item()), encoding="ascii")
    dist.destroy_process_group()


def rank_of_launcher() -> int:
    """This process's rank before it has joined a group: as rankdeck and torchrun set it, Open MPI or MPICH."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def main() -> None:
    parameters = read_parameters(Parameters)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    number = rank_of_launcher()
    lr, kept = parameters.lr * 2.0**number, checkpoint.folder("spawn", parameters.checkpoint_dir) / f"rank-{number}"
    with tempfile.TemporaryDirectory() as folder:
        start = mp.start_processes  # type: ignore[attr-defined]  # documented, not re-exported
        start(work, (parameters, lr, folder, kept), parameters.processes, start_method=parameters.start_method)  # type: ignore[no-untyped-call]
        loss = float(Path(folder, "loss").read_text(encoding="ascii"))
    print(f"{parameters.processes} processes of one rank: learning rate {lr:g}, loss {loss:.6f}")

    rankdeck.init_process_group()
    rank, device = dist.get_rank(), rankdeck.device()
    found = [torch.zeros(2, dtype=torch.float64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.tensor([loss, lr], dtype=torch.float64, device=device))
    best = min(tuple(one.tolist()) for one in found)
    if rank == 0:
        print(f"best learning rate: {best[1]:g}")
        print(f"final loss {best[0]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
