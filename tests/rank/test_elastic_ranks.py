"""What survivors and newcomers of an elastic training do when something goes wrong while a generation forms."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rank.elastic_ranks import Ranks, without_numpy
from tests.support import kill_hard
from tests.warm_ranks import Template

pytestmark = pytest.mark.slow

TRAIN = """
import os, signal, sys, time, torch, rankdeck
import torch.distributed as dist

rank, born = int(os.environ["RANK"]), int(os.environ["RANKDECK_GENERATION"])
model = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    model.weight.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
state = rankdeck.elastic.State(step=0, model=model, optimizer=optimizer)
{prologue}

@rankdeck.elastic.run(state)
def train():
    print("enter", state.step, flush=True)
    while state.step < 6:
        (state.model.weight.sum() * (state.step + 1)).backward()
        if (state.step, rank, born) == (3, 1, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(model.weight.grad)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
    return model.weight.item()

print("result", train(), flush=True)
"""

RESULT = "result -42.0"
"""Two ranks, six steps, and a gradient of 1 in the first step, 2 in the second."""

Launch = Callable[..., Ranks]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Prepares ranks that run the text of a script."""
    made: list[Ranks] = []

    def launch(text: str, world: int = 2, template: Template | None = None, secret: str = "") -> Ranks:
        script = tmp_path / "script.py"
        script.write_text(text)
        made.append(Ranks(tmp_path, [str(script)], world, template, secret))
        return made[-1]

    yield launch
    for ranks in made:
        ranks.close()


def lose_rank_1(ranks: Ranks) -> None:
    """Begins a training of two ranks, and kills one of them in the middle."""
    ranks.start(0)
    ranks.start(1)
    assert ranks.end(1) == -signal.SIGKILL
    ranks.tell("lost", 0)


def check_that_all_end_well(ranks: Ranks, generation: int) -> None:
    """Rank 0 is its first process, and rank 1 the one of this generation; both have trained as if nothing had been."""
    assert ranks.end(0) == 0, ranks.said(0)
    assert ranks.end(1, generation) == 0, ranks.said(1, generation)
    assert RESULT in ranks.said(0)
    assert RESULT in ranks.said(1, generation)
    assert "enter 3" in ranks.said(1, generation)


def test_a_step_that_is_repeated_finds_no_gradients_of_the_first_try(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=""))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    check_that_all_end_well(ranks, 1)


DIES_WHILE_FORMING = """
if born == 1:
    dist.distributed_c10d._new_process_group_helper = lambda *a, **b: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_death_while_a_generation_forms_leaves_the_next_one_possible(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=DIES_WHILE_FORMING))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    assert ranks.end(1, 1) == -signal.SIGKILL
    ranks.tell("lost", 1)
    ranks.start(1, 2)
    ranks.tell("generation", 2)
    check_that_all_end_well(ranks, 2)


def test_what_a_stranger_writes_into_the_store_is_ignored(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=""), secret="5ec7e7")
    for generation in (0, 1):
        for name in ("0", "1", "complete", "formed/0", "formed/1", "result"):
            ranks.forge(f"{generation}.0/{name}", "lost")
    for key in ("news/0", "news/0/1", "news/0/2", "news/1", "news/1/1", "news/1/2", "news/2/3"):
        ranks.forge(key, '["generation", 7]')
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    check_that_all_end_well(ranks, 1)
    assert "rank 0 ignores a value in the store that is not from this run" in ranks.said(0)


IS_LATE = """
from rankdeck.elastic import _session
make = dist.distributed_c10d._new_process_group_helper

def late(*arguments, **named):
    while not os.path.exists("go on"):
        time.sleep(0.01)
    return make(*arguments, **named)

_session.CONNECT_TIMEOUT = 5.0  # gloo tries five times as long
if born == 1:
    dist.distributed_c10d._new_process_group_helper = late
"""


def test_a_rank_that_joins_too_late_costs_nobody_the_state(launch: Launch) -> None:
    ranks = launch(TRAIN.format(prologue=IS_LATE))
    lose_rank_1(ranks)
    ranks.start(1, 1)
    ranks.tell("generation", 1)
    ranks.wait_for("and tries again", 0)
    (ranks.folder / "go on").touch()
    check_that_all_end_well(ranks, 1)


SOURCE_DIES = """
import os, signal, sys, torch
import torch.distributed as dist
from rankdeck.elastic._broadcast import broadcast

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
values = {"a": torch.full((3,), float(rank)), "b": torch.full((4,), float(rank)), "step": rank}
send, sent = dist.broadcast, []

def counting(*arguments, **named):
    sent.append(1)
    if rank == 1 and len(sent) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    send(*arguments, **named)
    if rank == 0:
        print("received", len(sent), flush=True)

dist.broadcast = counting
try:
    broadcast(values, 1, mine=rank == 1, group_device=torch.device("cpu"))
except RuntimeError:
    print("kept", values, flush=True)
dist.destroy_process_group()  # threads of gloo can abort a process that ends
"""


def test_a_source_that_dies_leaves_the_receivers_as_they_were(launch: Launch) -> None:
    ranks = launch(SOURCE_DIES)
    ranks.start(0)
    ranks.start(1)
    assert ranks.end(1) == -signal.SIGKILL
    assert ranks.end(0) == 0, ranks.said(0)
    assert "received 3\n" in ranks.said(0), "the object and the first tensor had come"
    assert "kept {'a': tensor([0., 0., 0.]), 'b': tensor([0., 0., 0., 0.]), 'step': 0}" in ranks.said(0)


ALL_KINDS = """
import os, sys, torch
import torch.distributed as dist
from rankdeck._objects import all_gather_objects
from rankdeck.elastic import State
from rankdeck.elastic._share import Arrival, share

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
names = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 bool complex64 complex128 float8_e4m3fn float8_e5m2"
parts = {name: torch.tensor([[rank, 1], [0, rank]]).to(getattr(torch, name)) for name in names.split()}
parts["sparse"] = torch.eye(3).mul(rank + 1).to_sparse()
parts["expanded"] = torch.tensor([float(rank)]).expand(5)
parts["turned"] = torch.arange(6.0).add(rank).reshape(2, 3).t()
parts["scalar"], parts["empty"] = torch.tensor(rank), torch.ones(0, rank)
parts["conjugate"] = torch.tensor([1 + 1j * rank]).conj()
model = torch.nn.BatchNorm1d(2)
model.register_buffer("mask", torch.tensor([float(rank)]).expand(4))
with torch.no_grad():
    model.weight.fill_(rank)
state = State(step=rank, model=model, **parts)
kept = state.int64
arrivals = all_gather_objects(Arrival(0, rank, False, rank), torch.device("cpu"))
share(state, arrivals, rank)
assert state.step == 1
assert state.sparse.to_dense().trace() == 6
assert state.expanded.tolist() == model.mask.tolist() + [1.0]
assert state.turned.tolist() == torch.arange(6.0).add(1).reshape(2, 3).t().tolist()
assert state.scalar == 1 and state.empty.shape == (0, 1) and state.conjugate.tolist() == [1 - 1j]
assert model.weight.tolist() == [1.0, 1.0]
for name in names.split():
    assert getattr(state, name).to(torch.complex64).tolist() == [[1, 1], [0, 1]], name
assert kept is state.int64, "a tensor that fits is filled in place"
dist.destroy_process_group()
print("well", "numpy" in sys.modules)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A template whose ranks find no numpy."""
    template = without_numpy(tmp_path_factory.mktemp("bare") / "site")
    yield template
    template.close()


def test_tensors_of_every_kind_are_shared_without_numpy(launch: Launch, bare: Template) -> None:
    ranks = launch(ALL_KINDS, template=bare)
    for rank in (0, 1):
        ranks.start(rank)
    for rank in (0, 1):
        assert ranks.end(rank) == 0, ranks.said(rank)
        assert "well False" in ranks.said(rank)


LATE_NEWS = """
import os, sys, time, rankdeck
state = rankdeck.elastic.State(step=0)

@rankdeck.elastic.run(state)
def train():
    state.step += 1

class Last:
    def __del__(self, os=os, time=time):
        os.write(1, b"ends\\n")
        while not os.path.exists("told"):
            time.sleep(0.01)
        time.sleep(1)

last = Last()
train()
"""


def test_news_that_come_while_the_interpreter_ends_do_no_harm(launch: Launch) -> None:
    ranks = launch(LATE_NEWS, world=1)
    ranks.start(0)
    ranks.wait_for("ends", 0)
    ranks.tell("lost", 0)
    (ranks.folder / "told").touch()
    assert ranks.end(0) == 0, ranks.said(0)
    assert ranks.said(0) == "ends\n"


def test_recipes_train_and_rejoin_without_numpy(tmp_path: Path, bare: Template) -> None:
    small = ["--steps", "60", "--batch", "2", "--block", "8", "--layers", "1", "--heads", "1", "--width", "8"]
    ranks = Ranks(tmp_path, ["-m", "rankdeck.recipes.gpt", *small, "--checkpoint-every", "0"], 2, bare)
    try:
        ranks.start(0)
        kill_hard(ranks.start(1).pid)
        ranks.wait_for("", 0)
        ranks.tell("lost", 0)
        ranks.start(1, 1)
        ranks.tell("generation", 1)
        for rank, generation in ((0, 0), (1, 1)):
            assert ranks.end(rank, generation) == 0, ranks.said(rank, generation)
            assert "done after step 60" in ranks.said(rank, generation)
    finally:
        ranks.close()


RUNS = {
    "linear": "rank 1: done after step",
    "collectives": "done: collectives drawn: 16, every result was right",
    "parameter_server": "rank 0: applied 50 updates of 1 trainers",
}


@pytest.mark.parametrize("recipe", RUNS)
def test_recipes_run_without_numpy(tmp_path: Path, bare: Template, recipe: str) -> None:
    words = [] if recipe == "collectives" else ["--preset", "small"]
    ranks = Ranks(tmp_path, ["-m", f"rankdeck.recipes.{recipe}", *words], 2, bare)
    try:
        for rank in (0, 1):
            ranks.start(rank)
        for rank in (0, 1):
            assert ranks.end(rank) == 0, ranks.said(rank)
        assert RUNS[recipe] in ranks.said(0) + ranks.said(1)
    finally:
        ranks.close()
