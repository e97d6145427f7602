"""Trains asynchronously with a parameter server over RPC.

Rank 0 is the server: it holds the parameters. All other ranks are trainers.
A trainer has a reference to the server's object, an RRef. In each step it
pulls the parameters, computes the loss of its own batch, and calls
`dist_autograd.backward`: distributed autograd follows the graph back
through the RPC that fetched the parameters, and leaves the gradients on the
server, under the number of this trainer's context. Then the server applies
them. Nobody waits for other trainers.

So a gradient may be old when it is applied: others have changed the
parameters since they were pulled. This staleness is reported, in updates,
and is usually the number of other trainers.

With `--checkpoint-every` the server writes the parameters, and how many
steps of each trainer are in them. After a restart each trainer asks for its
number, and goes on from there.

With one trainer the training is deterministic. With several it is not: the
order of updates depends on timing, and so do the losses. In every case each
gradient is applied once, and the model learns.

What goes wrong in practice:
- The server is the bottleneck: all parameters pass through it in each step.
  Large models need several servers.
- When a trainer is lost, the RPCs of others do not end. This server ends
  the job if a trainer is silent for `--patience` seconds; a trainer ends
  when an RPC fails. Both say so in one line.
- A rank that is lost before all have joined: `init_rpc` waits half an hour
  for the store, and 24 days for a peer. See `join`.
- Backends do not matter: RPC has its own transport, TensorPipe, and here
  the tensors are on the CPU. On one node TensorPipe uses shared memory, and
  polls it: if there are as many ranks as cores, that slows all of them.
  Here it uses TCP.
- Ctrl-C raises KeyboardInterrupt, and the interpreter ends while threads of
  RPC still run: it aborts or hangs. Here signals end a process at once; a
  checkpoint is whole whenever that happens.
- RPC pickles functions by name, and anybody who reaches its port can run
  code: use it in networks you trust.

Change: `--lr` with more trainers; let the server wait for all gradients of
a step, and compare.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.func import functional_call
from torch.nn import functional as F

import rankdeck
from rankdeck import checkpoint
from rankdeck._torch_compat import receive_objects_without_numpy
from rankdeck.recipes import parameter, read_parameters
from rankdeck.recipes._digits import read_digits
from rankdeck.recipes._refusal import ARGUMENTS, end_at_once, refuse
from rankdeck.recipes._seeds import seed_at

RANKS = (2, None)
REFUSED_BACKENDS = {
    "mpi": "torch's RPC has its own transport and never uses the process group",
    "ucc": "torch's RPC has its own transport and never uses the process group",
}


@dataclass(frozen=True)
class Parameters:
    steps: int = parameter(200, "steps of each trainer", low=1, presets={"small": 50, "minute": 5000, "big": 20000})
    batch: int = parameter(32, "images per trainer and step", low=1, presets={"big": 256})
    hidden: int = parameter(64, "units of the hidden layer", low=1, presets={"big": 1024})
    lr: float = parameter(0.1, "learning rate", low=0.0)
    patience: float = parameter(
        60.0, "how long the start, an RPC, or the silence of a trainer may last", low=0.1, high=1e6, unit="seconds"
    )
    seed: int = parameter(0, "decides the initial parameters and the order of the images")
    checkpoint_every: int = parameter(0, "steps of the slowest trainer between checkpoints; 0: never", low=0)
    checkpoint_dir: str = parameter("", "folder of checkpoints; empty: the run's, else ./checkpoints/parameter-server")


def make_model(p: Parameters) -> nn.Sequential:
    """The model as seeded; trainers use its structure, and the server's parameters."""
    torch.manual_seed(p.seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, p.hidden), nn.ReLU(), nn.Linear(p.hidden, 10))


class Server:
    """The parameters, and the state of the trainers. RPCs call its methods in threads of their own."""

    def __init__(self, p: Parameters, trainers: range) -> None:
        self.p, self.model, self.steps = p, make_model(p), dict.fromkeys(trainers, 0)
        self.folder = checkpoint.folder("parameter-server", p.checkpoint_dir)
        if (saved := checkpoint.load(self.folder)) is not None:
            self.steps |= {trainer: step for trainer, step in saved.state["steps"].items() if trainer in trainers}
            self.model.load_state_dict(saved.state["model"])
        self._changed = threading.Condition()
        self._heard = dict.fromkeys(trainers, 0.0)

    @property
    def updates(self) -> int:
        """How many gradients are in the parameters."""
        return sum(self.steps.values())

    def steps_of(self, trainer: int) -> int:
        return self.steps[trainer]

    def pull(self, trainer: int) -> tuple[int, dict[str, torch.Tensor]]:
        """The parameters, and how many updates they have had."""
        with self._changed:
            self._heard[trainer] = time.monotonic()
            # Copies, which keep the graph: an update must not change what is being sent.
            return self.updates, {name: tensor.clone() for name, tensor in self.model.named_parameters()}

    def apply(self, trainer: int, context: int, pulled: int) -> int:
        """Takes the gradients of a trainer's context. Returns the staleness: updates by others since the pull."""
        gradients = dist_autograd.get_gradients(context)  # type: ignore[attr-defined]
        with self._changed, torch.no_grad():
            for tensor in self.model.parameters():
                tensor.sub_(self.p.lr * gradients[tensor])
            before, self.steps[trainer] = min(self.steps.values()), self.steps[trainer] + 1
            step = min(self.steps.values())
            if self.p.checkpoint_every and step > before and step % self.p.checkpoint_every == 0:
                checkpoint.save(self.folder, step, {"model": self.model.state_dict(), "steps": self.steps})
            return self.updates - 1 - pulled

    def leave(self, trainer: int) -> None:
        """A trainer has done all of its steps."""
        with self._changed:
            del self._heard[trainer]
            self._changed.notify()

    def wait(self, patience: float) -> int | None:
        """Waits until all trainers have left. Returns one that has been silent for too long, if there is one."""
        with self._changed:
            self._heard = dict.fromkeys(self._heard, time.monotonic())  # all have joined
            while self._heard:
                silent = min(self._heard, key=lambda trainer: self._heard[trainer])
                left = self._heard[silent] + patience - time.monotonic()
                if left <= 0:
                    return silent
                self._changed.wait(left)
        return None


_server: Server  # on rank 0


def server_reference() -> rpc.RRef[Server]:
    return rpc.RRef(_server)


def serve(p: Parameters, world: int) -> None:
    print(f"rank 0: serves {sum(tensor.numel() for tensor in _server.model.parameters()):,} parameters")
    silent = _server.wait(p.patience)
    if silent is not None:
        end_at_once(f"rank 0: trainer {silent} has been silent for {p.patience:g} s; the training ends")
    _, held_out = read_digits()
    with torch.no_grad():
        accuracy = (_server.model(held_out.images).argmax(1) == held_out.labels).float().mean()
    print(f"rank 0: applied {_server.updates} updates of {world - 1} trainers")
    print(f"final accuracy {accuracy:.3f}")


def train(p: Parameters, rank: int, world: int) -> None:
    digits, _ = read_digits()
    images, labels = digits.images[rank - 1 :: world - 1], digits.labels[rank - 1 :: world - 1]
    model = make_model(p)
    server = rpc.rpc_sync("rank-0", server_reference)
    if begin := server.rpc_sync().steps_of(rank):
        print(f"rank {rank}: resumes after step {begin} of {p.steps}")
    for step in range(begin + 1, p.steps + 1):
        generator = torch.Generator().manual_seed(seed_at(p.seed, step, rank))
        picks = torch.randint(len(labels), (p.batch,), generator=generator)
        with dist_autograd.context() as context:
            pulled, weights = server.rpc_sync().pull(rank)
            loss = F.cross_entropy(functional_call(model, weights, images[picks]), labels[picks])
            dist_autograd.backward(context, [loss])  # type: ignore[attr-defined]
            staleness = server.rpc_sync().apply(rank, context, pulled)
        rankdeck.log(step=step, steps=p.steps, loss=loss, samples=p.batch, staleness=staleness)
        if step % 50 == 0 or step == p.steps:
            print(f"rank {rank}: step {step}/{p.steps}  loss {loss.item():.4f}  staleness {staleness}")
    server.rpc_sync().leave(rank)


def join(p: Parameters, rank: int, world: int) -> object:
    """Starts RPC on this rank, and waits for all others. Returns the store, which rank 0 may host: keep it until the end."""
    bound = timedelta(seconds=p.patience)
    # init_rpc (torch 2.13) lets nobody set these two limits. It finds the store that was reached here, at once.
    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=bound))  # type: ignore[attr-defined]
    rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT = bound
    receive_objects_without_numpy()
    # TCP only. Ranks of one node would use shared memory, for which TensorPipe polls without a pause: it takes the cores that they need.
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=p.patience, _transports=["uv"])
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=world, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    return store


def main() -> None:
    global _server
    p = read_parameters(Parameters)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world < RANKS[0]:
        refuse("parameter-server: 2 ranks or more are needed: a server and a trainer", ARGUMENTS)
    # The kernel ends a rank at once. Python's own handler of SIGINT would end the interpreter while threads of RPC still run in it,
    # which aborts the process, or makes it hang (torch 2.13).
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    warnings.filterwarnings("ignore", message="You are using a Backend .* as a ProcessGroup")
    try:
        if rank == 0:
            _server = Server(p, range(1, world))
        store = join(p, rank, world)  # noqa: F841 - kept
        serve(p, world) if rank == 0 else train(p, rank, world)
        rpc.shutdown(timeout=p.patience)
    except RuntimeError as error:
        end_at_once(f"rank {rank}: the training ends: {str(error).strip().splitlines()[0]}")


if __name__ == "__main__":
    main()
