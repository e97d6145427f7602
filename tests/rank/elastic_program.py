"""One rank of the contract suite of elastic states: trains as the options of a script say, and kills itself where it is told.

    python elastic_program.py OPTIONS KILL

OPTIONS is a JSON object, see `SCRIPTS` in `elastic_contract.py`. KILL is `PHASE STEP RANK`: the first process of that rank kills itself
in that phase of that step. At the end each rank prints `result` and a digest of its state.
"""

import collections
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rankdeck
from rankdeck.elastic import _replacement, _streams
from rankdeck.elastic._digest import digest

STEPS, WIDTH = 7, 6
options: dict[str, Any] = collections.defaultdict(str, json.loads(sys.argv[1]))
kill = sys.argv[2].split()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
is_first = os.environ["RANKDECK_GENERATION"] == "0"
_replacement.LEAVE_TIME = 2.0
torch.set_num_threads(1)
torch.manual_seed(0)


def hit(phase: str) -> None:
    """Kills this process if it is its time."""
    if is_first and kill == [phase, str(state.step), str(rank)]:
        os.kill(os.getpid(), signal.SIGKILL)


class Net(torch.nn.Module):
    """A small net with what the options ask for."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)
        self.unused: Any = torch.nn.Linear(WIDTH, 1) if options["unused"] else None
        norms: Any = {"batch": torch.nn.BatchNorm1d, "layer": torch.nn.LayerNorm}
        self.norm: Any = norms[options["norm"]](WIDTH) if options["norm"] else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(0.2 if options["dropout"] else 0.0)
        if options["buffer"]:
            # A new process begins with another value.
            self.register_buffer(
                "seen", torch.tensor(0.0 if is_first else 100.0), persistent=options["buffer"] == "kept"
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One value for each row."""
        if options["buffer"] and self.training:
            self.seen += 1
            inputs = inputs * (1 + self.seen / 100)
        outputs: torch.Tensor = self.last(self.dropout(torch.relu(self.norm(self.first(inputs)))))
        if self.unused is not None and int(inputs[0, 0] > 0):
            outputs = outputs + self.unused(inputs)
        return outputs


class Counted(collections.Counter[str]):
    """A dict subclass of the script's own."""


class Sampler:
    """Draws batches, and knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """As of a stateful data loader."""
        return {"at": self.at}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        """As of a stateful data loader."""
        self.at = saved["at"]


class Forgetful(Sampler):
    """Does not load what it saves."""

    def load_state_dict(self, saved: dict[str, int]) -> None:
        """Forgets."""


class Average:
    """An exponential average of a model, without a `state_dict`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: torch.nn.Module) -> None:
        """Takes a tenth of the model."""
        for name, one in model.named_parameters():
            self.shadow[name].lerp_(one.detach(), 0.1)


model: Any = Net().to(getattr(torch, options["dtype"] or "float32"))
name, settings = options["optimizer"] or "SGD", options["settings"] or {}
optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05, **settings)
parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
if options["second"]:
    parts["second"] = torch.optim.SGD(model.last.parameters(), lr=0.01)
if options["schedule"]:
    kind, arguments = options["schedule"]
    parts["schedule"] = getattr(torch.optim.lr_scheduler, kind)(optimizer, **arguments)
MAKES: dict[str, Any] = {
    "average": lambda: torch.optim.swa_utils.AveragedModel(model),
    "shadow": lambda: Average(model),
    "scaler": lambda: torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
    "sampler": Sampler,
    "forgetful": Forgetful,
    "losses": list,
    "seen": int,
    "counter": Counted,
    "grouped": lambda: collections.defaultdict(list),
    "ordered": collections.OrderedDict,
    "window": lambda: collections.deque(maxlen=3),
    "names": set,
    "tensor": lambda: torch.zeros(2),
    "tensors": lambda: {"a": [torch.zeros(2)]},
    "lock": threading.Lock,
    "callback": lambda: lambda: None,
    "metadata": lambda: torch.nn.Linear(1, 1).state_dict(),
    "handle": lambda: sys.stdin,
}
parts |= {name: MAKES[name]() for name in options["parts"] or ()}
state = rankdeck.elastic.State(**parts)
held: Any = state.tensor if "tensor" in parts else None
if options["stream"]:
    _streams.DEVICES["stream"] = lambda: None


def batch(step: int, index: int = 0) -> torch.Tensor:
    """The inputs of this rank, which follow from rank and step."""
    noise = torch.Generator().manual_seed(1000 * step + 10 * index + rank)
    return torch.randn(8, WIDTH, generator=noise).to(model.first.weight.dtype)


def change_parts(loss: torch.Tensor) -> None:
    """Changes what else belongs to the state."""
    for name in options["parts"] or ():
        part = getattr(state, name)
        if name == "average":
            part.update_parameters(model)
        elif name == "shadow":
            part.update(model)
        elif name in ("sampler", "forgetful"):
            part.at += 8
        elif name in ("losses", "window"):
            part.append(round(loss.item(), 6))
        elif name == "seen":
            state.seen += 8
        elif name == "counter":
            part[f"step {state.step % 2}"] += 1
        elif name == "grouped":
            part[state.step % 2].append(state.step)
        elif name == "ordered":
            part[state.step] = torch.tensor(state.step)
        elif name == "names":
            part.add(f"step {state.step}")
        elif name == "tensor":
            held.add_(1.0 + state.step)  # the script keeps the tensor
        elif name == "tensors":
            part["a"][0].add_(1.0 + state.step)
    if options["schedule"]:
        state.schedule.step(*([loss.item()] if options["schedule"][0] == "ReduceLROnPlateau" else []))


def backward(ddp: Any, step: int, index: int) -> torch.Tensor:
    """One pass. Returns the loss of all ranks."""
    torch.manual_seed(10_000 * step + 100 * index + rank)  # for dropout
    loss: torch.Tensor = ddp(batch(step, index)).float().square().mean()
    hit("forward")
    scaled: Any = state.scaler.scale(loss) if "scaler" in parts else loss
    handle = model.first.weight.register_hook(lambda gradient: hit("backward"))
    scaled.backward()
    handle.remove()
    hit("collective")
    whole = loss.detach().clone()
    dist.all_reduce(whole)
    return whole


def train_step(ddp: Any) -> None:
    """One step, counted last unless the options say otherwise."""
    if options["rate"]:
        for settings in optimizer.param_groups:
            settings["lr"] *= 0.9
    optimizer.zero_grad()
    for index in range(options["accumulate"] or 1):
        if options["accumulate"] and options["no_sync"] and index + 1 < options["accumulate"]:
            with ddp.no_sync():
                loss = backward(ddp, state.step, index)
        else:
            loss = backward(ddp, state.step, index)
        if options["counts"] == "passes" and index + 1 < options["accumulate"]:
            state.step += 1
    if options["second"]:
        state.second.step()
        hit("between")
        dist.all_reduce(loss.clone())
    if "scaler" in parts:
        state.scaler.step(optimizer)
        state.scaler.update()
    else:
        optimizer.step()
    hit("step")
    if options["counts"] == "first":
        state.step += 1
        hit("tail")
        dist.all_reduce(loss.clone())
        change_parts(loss)
    else:
        change_parts(loss)
        if options["attribute"] and state.step == 2:
            state.later = 1
        state.step += 1
    hit("counted")
    if options["commit"] and state.step % options["commit"] == 0:
        state.commit()
        hit("commit")


def beside_training(group: Any) -> None:
    """What the options ask for between two steps."""
    if options["eval"]:
        model.eval()
        with torch.no_grad():
            hit("eval")
            dist.all_reduce(model(batch(99)).mean())
        model.train()
    if options["barrier"]:
        hit("barrier")
        dist.barrier(group)
    if options["save"]:
        from torch.distributed import checkpoint as dcp

        hit("save")
        dcp.save(  # type: ignore[attr-defined]
            {"model": model.state_dict()}, checkpoint_id="saved"
        )
    if options["thread"]:
        wait_for_helper()


def wait_for_helper() -> None:
    """Lets a thread make a collective, and waits for a word of it without a limit."""
    words: queue.Queue[str] = queue.Queue()

    def reduce() -> None:
        hit("thread")
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            return  # and says nothing
        words.put("done")

    threading.Thread(target=reduce, daemon=True).start()
    words.get()


@rankdeck.elastic.run(state)
def train() -> None:
    """All steps."""
    hit("init")
    group = dist.new_group() if options["group"] else None
    wrapped: Any = torch.compile(model, backend="eager") if options["compile"] else model
    ddp_options: Any = {"static_graph": bool(options["static"]), "find_unused_parameters": bool(options["unused"])}
    ddp = DistributedDataParallel(wrapped, process_group=group, **ddp_options)
    # DDP regroups gradients after its first pass (with a static graph, after its second), and another grouping rounds otherwise.
    for _ in range(2 if options["static"] else 1):
        model.train(bool(options["warms_in_training"]))
        ddp(torch.zeros(2, WIDTH, dtype=model.first.weight.dtype)).sum().backward()
    model.train()
    optimizer.zero_grad()
    while state.step < STEPS:
        train_step(ddp)
        beside_training(group)
    hit("last")


train()
if options["twice"]:
    train()
assert held is None or held is state.tensor, "the tensor of the script is no longer that of the state"
values = state._read()
if options["norm"] == "batch" or options["buffer"]:  # of each rank alone, except those of rank 0
    values["model"] = [parameter.detach() for parameter in model.parameters()]
print(
    "result",
    digest(values),
    *([model.norm.running_mean.sum().item()] if options["norm"] == "batch" and rank == 0 else []),
    flush=True,
)
