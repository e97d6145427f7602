"""Shrinks and grows the world by hand, with new process groups.

`--worlds 4,2,4` trains in three generations: with four ranks, with the
first two of them, and with four again. The processes keep running; only the
process group changes. At the end of a generation its ranks destroy their
group. Those that take part in the next one make a new group over the same
store, under a prefix of its own, and rank 0, which is always there, sends
everybody its state. All others wait.

The batch of a step has the same points in each generation, and only the
share of a rank changes. So the loss does not depend on the world, up to
rounding.

`rankdeck.elastic` does all this when a rank dies: it notices, starts
another process, forms the group, and takes the state from the rank that has
trained the most. Use it in your own script, as the recipe `gpt` does; this
one shows what is inside.

What goes wrong in practice:
- Delete everything that belongs to the old group before you make the new
  one: DDP wrappers, samplers, sub-groups.
- Without a prefix of its own a new group finds keys of the old one in the
  store, and hangs or connects to addresses that are gone.
- A rank that joins must get all of the state: step, parameters, and the
  optimizer's momentum too. A fresh momentum shows in the loss.
- A share that is rounded down loses samples. Here it is a slice of the
  batch, and gradients are sums over the whole batch.

Change: `--worlds 1,4`; leave out the optimizer in `give_state`, and compare
the losses.
"""

import os
import signal
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._checkpoint import resume_alone
from rankdeck.recipes._refusal import ARGUMENTS, refuse
from rankdeck.recipes._seeds import seed_at
from rankdeck.recipes._spirals import ARMS, draw_spirals, held_out_spirals

REFUSED_BACKENDS = {"mpi": "an MPI process can't join a second world of another size"}

FOREVER = timedelta(days=365)


@dataclass(frozen=True)
class Parameters:
    worlds: str = parameter(
        "",
        "number of ranks of each generation, such as 4,2,4; empty: all, half, all",
        pattern="([1-9][0-9]*(,[1-9][0-9]*)*)?",
    )
    steps: int = parameter(
        40, "optimizer steps of a generation", low=1, presets={"small": 30, "minute": 2000, "big": 5000}
    )
    batch: int = parameter(96, "points per step over all ranks", low=1, presets={"big": 1024})
    width: int = parameter(64, "units of a layer", low=1, presets={"big": 1024})
    lr: float = parameter(0.2, "learning rate", low=0.0)
    seed: int = parameter(0, "decides the initial parameters and the points")
    checkpoint_every: int = parameter(0, "steps between checkpoints; 0: never", low=0, unit="steps")
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/elastic")


class Training:
    """State that a rank keeps from one generation to the next."""

    def __init__(self, p: Parameters, device: torch.device) -> None:
        self.p, self.device, self.step = p, device, 0
        torch.manual_seed(p.seed)
        self.model = nn.Sequential(
            nn.Linear(2, p.width), nn.ReLU(), nn.Linear(p.width, p.width), nn.ReLU(), nn.Linear(p.width, ARMS)
        ).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=p.lr, momentum=0.9)
        self.folder = checkpoint.folder("elastic", p.checkpoint_dir)

    def resume(self) -> None:
        """Rank 0 takes what its newest checkpoint holds; the others get it by `give_state`."""
        if (saved := resume_alone(self.folder, self.device)) is not None:
            self.step = saved["step"]
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])

    @torch.no_grad()
    def give_state(self) -> None:
        """Rank 0 sends step, parameters and momenta to all. A collective."""
        step = torch.tensor([self.step], device=self.device)
        dist.broadcast(step, src=0)
        self.step = int(step)
        for tensor in self.model.parameters():
            momentum = self.optimizer.state[tensor].setdefault("momentum_buffer", torch.zeros_like(tensor))
            dist.broadcast(tensor, src=0)
            dist.broadcast(momentum, src=0)

    def train(self, until: int, steps: int) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        while self.step < until:
            drawn = draw_spirals(self.p.batch, seed_at(self.p.seed, self.step + 1))
            points, arms = (tensor.tensor_split(world)[rank].to(self.device) for tensor in drawn)
            loss = F.cross_entropy(self.model(points), arms, reduction="sum") / self.p.batch
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for tensor in self.model.parameters():
                dist.all_reduce(tensor.grad)
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            self.optimizer.step()
            self.step += 1
            rankdeck.log(step=self.step, steps=steps, loss=whole, samples=len(points), world=world)
            if rank == 0 and (self.step % 20 == 0 or self.step == until):
                print(f"rank 0: step {self.step}/{steps}  loss {whole.item():.4f}  {world} ranks")
            every = self.p.checkpoint_every
            if rank == 0 and every and (self.step % every == 0 or self.step == until):
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                checkpoint.save(self.folder, self.step, state)


def meet() -> tuple[Store, int, int]:
    """The store in which all ranks meet, this rank, and the number of ranks there are."""
    if "RANK" not in os.environ:
        return HashStore(), 0, 1
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    return store, rank, world


def main() -> None:
    p = read_parameters(Parameters)
    # A rank without a group can't agree on a signal with others, and one that waits in the store must not be deaf.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    store, rank, ranks = meet()
    worlds = [int(word) for word in p.worlds.split(",")] if p.worlds else [ranks, (ranks + 1) // 2, ranks]
    if max(worlds) > ranks:
        refuse(f"elastic: --worlds {p.worlds} needs {max(worlds)} ranks, and there are {ranks}", ARGUMENTS)
    training = Training(p, rankdeck.device())
    if rank == 0:
        training.resume()
        store.set("resumes after", str(training.step))
    begin = int(store.get("resumes after"))
    for generation, world in enumerate(worlds, 1):
        until = generation * p.steps
        if until <= begin:
            continue  # it was over before a restart, for every rank
        if rank < world:
            own = PrefixStore(f"generation {generation}", store)
            rankdeck.init_process_group(store=own, rank=rank, world_size=world)
            training.give_state()
            print(
                f"rank {rank} of {world}: generation {generation} of {len(worlds)} goes on after step {training.step}"
            )
            training.train(until, len(worlds) * p.steps)
            dist.destroy_process_group()
        else:
            print(f"rank {rank}: waits while {world} ranks train generation {generation}")
        if rank == 0:
            store.set(f"generation {generation} is over", "")
        else:
            store.wait([f"generation {generation} is over"], FOREVER)
    store.set(f"rank {rank} is done", "")
    if rank == 0:
        points, arms = held_out_spirals(p.seed)
        with torch.no_grad():
            accuracy = (training.model(points.to(training.device)).argmax(1).cpu() == arms).float().mean()
        print(f"final accuracy {accuracy:.3f}")
        # Rank 0 may host the store, so it leaves last.
        store.wait([f"rank {other} is done" for other in range(ranks)], FOREVER)


if __name__ == "__main__":
    main()
