"""An elastic training that any rank may leave, and what the tests of it ask of its run.

Where there is a file `hold`, the training waits before its last step: it must not end before a test has done all that it wants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import Deck

TRAIN = """
import os, sys, time, torch, rankdeck
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.0), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = rankdeck.elastic.State(
    step=0, model=model, optimizer=optimizer, schedule=torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9), seen=0
)
steps, pause = int(sys.argv[1]), float(sys.argv[2])

def any_sees(name):  # ranks leave together, or the last send of one finds that another is gone
    seen = torch.tensor(float(os.path.exists(name)))
    dist.all_reduce(seen)
    return bool(seen)

@rankdeck.elastic.run(state)
def train():
    ddp = DDP(state.model)
    ddp(torch.zeros(1, 16)).sum().backward()  # DDP regroups gradients after its first pass, and that rounds otherwise
    print("enter", state.step, flush=True)
    while state.step < steps:
        while state.step == steps - 1 and any_sees("hold"):
            time.sleep(0.05)
        noise = torch.Generator().manual_seed(1000 * state.step + dist.get_rank())
        state.optimizer.zero_grad()
        loss = ddp(torch.randn(8, 16, generator=noise)).square().mean()
        loss.backward()
        state.optimizer.step()
        state.schedule.step()
        state.seen += 8
        state.step += 1
        rankdeck.log(step=state.step, loss=loss.item(), samples=8)
        time.sleep(pause)
        if any_sees("finish"):
            break
    return "returned"

print(train(), state.step, state.seen, sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
"""


def reached(deck: Deck, run: str, step: int) -> Any:
    """Waits until every rank has finished a step, and is well. Returns the status."""
    well = ("running", "exited")
    return deck.wait_status(
        run, lambda status: all((rank["step"] or 0) >= step and rank["state"] in well for rank in status["ranks"])
    )


def pids(status: Any) -> list[int]:
    return [rank["pid"] for rank in status["ranks"]]


def replaced(deck: Deck, run: str, victims: list[int]) -> list[int]:
    """The ranks that have another process than at first: those that were killed, and those that said that they are stuck.

    A survivor that gloo does not let out of its collective makes way after some seconds; its successor gets its state.
    """
    stuck = {
        event["rank"]
        for event in deck.journal(run)
        if event["event"] == "RankEnded"
        and b"is stuck in a collective; a new process takes its place" in deck.log(run, event["rank"], "err")
    }
    return sorted({*victims, *stuck})


def assert_kept(deck: Deck, run: str, before: list[int], after: Any, *ranks: int) -> None:
    """These ranks have the process that they had, unless they made way."""
    others = replaced(deck, run, [])
    lost = [rank for rank in ranks if pids(after)[rank] != before[rank] and rank not in others]
    assert not lost, "\n".join([f"ranks {lost} have another process; the journal:", *map(str, deck.journal(run))])


def wait_for_another(deck: Deck, run: str, rank: int, pid: int) -> int:
    """Waits until a rank has another process than this one. Returns it."""
    return pids(deck.wait_status(run, lambda status: pids(status)[rank] not in (pid, None)))[rank]


def result(deck: Deck, run: str, ranks: int = 4) -> str:
    """What every rank said at its end, which is no longer held."""
    Path("hold").unlink(missing_ok=True)
    assert deck("wait", run, seconds=100).returncode == 0, deck("logs", run).stderr
    said = {line for rank in range(ranks) for line in deck.log(run, rank).decode().splitlines() if "returned" in line}
    assert len(said) == 1, said
    return said.pop()
