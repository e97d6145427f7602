"""One rank of the contract of wrong calls: `tests/data/tables/c10d/wrong_calls.toml` has them, and what their errors say.

    python wrong_calls.py BACKEND FOLDER

Writes FOLDER/RANK.json: for each call the error of this rank, "no error", or "" where this rank has nothing to do. With gloo, which is the
control, each call is made by forked ranks, because some end in a signal or never; RANK and WORLD_SIZE are in the environment then.
"""

import contextlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: F401 - for the calls, as the two of DTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate  # noqa: F401

from tests.support import PATIENCE, entries

SIZE, F32, F64 = 12, torch.float32, torch.float64
SHORT = timedelta(seconds=1)
HANGS = 15.0  # seconds after which a rank of gloo is said to hang; its timeout is 2 s
ALIVE = "the group is alive"


class Wrong(NamedTuple):
    """A wrong call. `kind`: argument, apart, absent or message. `name`: its name in the table. `what`: the operation, which an error of the caller
    names first. `call`: an expression. `says`: a pattern of the error."""

    kind: str
    name: str
    what: str
    call: str
    says: str


def wrong_calls(world: int) -> Iterator[Wrong]:
    """All wrong calls of a group of this size."""
    table = {name: entries("c10d/wrong_calls", name) for name in TABLES}
    for way, call in table["ways"].items():
        for kind, (tensor, says) in table["tensors"].items():
            yield Wrong("argument", f"{way} of {kind}", way.split(":")[0], call.replace("{t}", tensor), says)
    for way, call in table["written"].items():
        shared = call.replace("{t}", "torch.ones(1).expand(SIZE)")
        yield Wrong("argument", f"{way} with shared elements", "" if " if " in call else way, shared, "share memory")
    for way, call in table["roots"].items():
        for root in (world, -3):
            says = f"there is no rank {root} in this group|{TORCHS}"
            yield Wrong("argument", f"{way} with rank {root}", way, call.replace("{root}", str(root)), says)
    for name, (what, call, says) in table["arguments"].items():
        yield Wrong("argument", name, what, call, says)
    for name, (call, says) in table["apart"].items():
        yield Wrong("apart", name, "", call, says)
    for name, (call, says) in table["absent"].items():
        yield Wrong("absent", f"{name}, one absent", "", call, says.replace("{away}", str(world - 1)))
    for name, (sent, received, says) in table["messages"].items():
        call = f"dist.send({sent}, away, group) if first else dist.recv({received}, 0, group) if last else None"
        yield Wrong("message", f"a message: {name}", "", call, says)


TABLES = ("ways", "tensors", "written", "roots", "arguments", "apart", "absent", "messages")
TORCHS = "Invalid destination rank|Invalid usage of tensors with different dtypes"
"""Errors that torch raises before our checks. They do not name the operation."""


class Wrapper(torch.Tensor):
    """A tensor without memory of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def freed() -> torch.Tensor:
    """A tensor whose storage was freed, as FSDP does."""
    tensor = torch.ones(SIZE)
    tensor.untyped_storage().resize_(0)
    return tensor


def ones(*shape: int, **options: Any) -> torch.Tensor:
    """Ones; without a shape, SIZE of them."""
    dtype = options.pop("dtype", F32)
    return torch.ones(*(shape or (SIZE,)), **options).to(dtype)


class Rank:
    """What the calls of a rank need. `group`: the whole world, in which errors of the caller are made."""

    def __init__(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.rank, self.away = rank, world - 1
        self.names = {
            **globals(), "rank": rank, "world": world, "first": rank == 0, "last": rank == world - 1, "away": self.away, "peer": (rank + 1) % world, "mesh": init_device_mesh("cpu", (world,)),
            "each": lambda one: [one] * world, "again": self.again,
            "reduced": lambda group: dist.all_reduce(ones(), group=group, async_op=True),
            "gathered": lambda group: dist.all_gather([ones() for _ in range(world)], ones(), group=group, async_op=True),
        }  # fmt: skip

    def again(self, group: Any) -> None:
        """Calls a collective in a group that has failed."""
        with contextlib.suppress(RuntimeError):
            dist.barrier(group)
        dist.all_reduce(ones(), group=group)

    def error_of(self, wrong: Wrong, group: Any) -> str:
        """The error of a call."""
        try:
            eval(wrong.call, {**self.names, "group": group})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            return f"{type(error).__name__}: {error}"
        return "no error"

    def makes(self, wrong: Wrong) -> bool:
        """Whether this rank makes the call."""
        return wrong.kind != "absent" or self.rank != self.away


def run(calls: list[Wrong], found: dict[str, str]) -> None:
    """Makes all calls: errors of the caller in one group, which lives on, and each other call in a group of its own."""
    me, long = Rank(), timedelta(seconds=4 * PATIENCE)
    for wrong in calls:
        if wrong.kind == "argument":
            found[wrong.name] = me.error_of(wrong, dist.group.WORLD)
    dist.all_reduce(total := torch.ones(1))
    found[ALIVE] = str(total.item())
    threads = []
    for wrong in calls:
        if wrong.kind == "apart":
            found[wrong.name] = me.error_of(wrong, dist.new_group(timeout=long))
        elif wrong.kind in ("absent", "message"):
            group: Any = dist.new_group(timeout=long)
            dist.barrier(group)
            found[wrong.name] = ""

            def call(wrong: Wrong = wrong, group: Any = group) -> None:
                group.set_timeout(SHORT)
                found[wrong.name] = me.error_of(wrong, group)

            if me.makes(wrong):
                threads.append(threading.Thread(target=call))
    dist.barrier()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dist.barrier()


def run_forked(calls: list[Wrong], found: dict[str, str], folder: Path) -> None:
    """Makes each call in a forked rank of gloo."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for number, wrong in enumerate(calls):
        result = folder / f"{number}.{rank}"
        if (pid := os.fork()) == 0:
            with contextlib.redirect_stderr(open(os.devnull, "w")):
                store = dist.FileStore(str(folder / f"{number}.store"), world)  # type: ignore[attr-defined]
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=2 * SHORT)
                me = Rank()
                result.write_text(me.error_of(wrong, dist.group.WORLD) if me.makes(wrong) else "")
                os._exit(0)
        end = time.monotonic() + HANGS
        while not (status := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.01)
            if time.monotonic() > end:
                os.kill(pid, 9)
        signal = os.waitstatus_to_exitcode(status[1])
        if not result.exists():
            ended = f"signal {-signal}" if signal < 0 else f"status {signal}"
            result.write_text("hangs" if signal == -9 else ended)
        found[wrong.name] = result.read_text()
        while not all(
            (folder / f"{number}.{one}").exists() for one in range(world)
        ):  # ranks begin the next one together
            time.sleep(0.01)


def main(backend: str, folder: Path) -> None:
    """Makes the calls, and writes what this rank found."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    if backend == "gloo":
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        run_forked(list(wrong_calls(world)), found, folder)
    else:
        import rankdeck.c10d.mpi
        import rankdeck.c10d.ucc  # noqa: F401 - so that torch knows them

        dist.init_process_group(backend, timeout=timedelta(seconds=4 * PATIENCE))
        rank, world = dist.get_rank(), dist.get_world_size()
        run(list(wrong_calls(world)), found)
    (folder / f"{rank}.new").write_text(json.dumps(found, indent=0))
    (folder / f"{rank}.new").rename(folder / f"{rank}.json")
    while len([*folder.glob("*.json")]) < world and backend != "gloo":
        time.sleep(0.01)
    sys.stdout.flush()
    os._exit(0)  # without waiting for ranks of groups that have failed


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
