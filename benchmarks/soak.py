"""Whether a run survives random deaths: SIGKILL and SIGSTOP of ranks, template, store, agent, warden, bridge and supervisor.

A small model trains with DDP while one process after the other, or two at once, is killed at a random moment. After each fault
every rank must finish a step that is further than any before. At the end the parameters must equal those of an undisturbed
training with the same number of steps, bit by bit, and no process may be left.

With gloo the ranks keep their state and rejoin (`rankdeck.elastic`); with mpi all ranks start again from the last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import Deck, is_alive, kill_hard, parent_of  # noqa: E402

SCRIPT = """
import hashlib, os, sys, time, torch, rankdeck
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
folder, rank = sys.argv[1], os.environ["RANK"]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
state = rankdeck.elastic.State(step=0, model=model, optimizer=torch.optim.AdamW(model.parameters()))
saved = os.path.join(folder, "checkpoint.pt")
if os.path.exists(saved):
    found = torch.load(saved)
    state.step = found["step"]
    model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
steps = open(os.path.join(folder, "steps-" + rank), "a", buffering=1)

def last_step():
    # Rank 0 reads where to end, so that all ranks end at the same step.
    end = torch.full((1,), -1, dtype=torch.int64)
    if rank == "0" and os.path.exists(os.path.join(folder, "finish")):
        end[0] = int(open(os.path.join(folder, "finish")).read() or -1)
    dist.broadcast(end, 0)
    return int(end)

@rankdeck.elastic.run(state)
def train():
    ddp = DDP(state.model)
    end = last_step()
    while end < 0 or state.step < end:
        torch.manual_seed(1000 * state.step + int(rank))
        state.optimizer.zero_grad()
        ddp(torch.randn(8, 32)).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        rankdeck.log(step=state.step)
        if state.step % 20 == 0 and rank == "0":
            torch.save({"step": state.step, "model": model.state_dict(), "optimizer": state.optimizer.state_dict()}, saved + ".new")
            os.rename(saved + ".new", saved)
        steps.write(f"{state.step} {os.getpid()}\\n")
        time.sleep(0.01)
        end = last_step()

train()
if rank == "0":
    whole = b"".join(bytes(value.detach().contiguous().view(torch.uint8).flatten().tolist()) for value in model.parameters())
    with open(os.path.join(folder, "result"), "w") as file:
        file.write(f"{state.step} {hashlib.sha256(whole).hexdigest()}")
"""

LIMIT = 180.0
"""Seconds within which a run trains again after a fault; then a command is typed, and counted."""

PROFILE = """
schema = 1
name = "soak"
[backend]
name = "{backend}"
[layout]
ranks_per_node = {ranks}
[recipe]
script = "{script}"
args = ["{folder}"]
[launch]
on_failure = "restart"
max_restarts = 1000000
"""


class Soak:
    """One run, the processes below it, and what it has done.

    Args:
        folder: for the run's home and the script's files.
        backend: gloo or mpi.
        ranks: how many.
    """

    def __init__(self, folder: Path, backend: str, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.profile = folder / "soak.toml"
        self.profile.write_text(PROFILE.format(backend=backend, ranks=ranks, script=script, folder=folder))
        os.environ.update(RANKDECK_HOME=str(folder / "home"), XDG_RUNTIME_DIR=str(folder / "r"), OMP_NUM_THREADS="1")
        (folder / "r").mkdir(mode=0o700)
        self.deck = Deck(folder / "home")
        self.run = ""

    def start(self) -> None:
        """Launches the run and waits for its first steps."""
        self.run = self.deck.launch(self.profile)
        self.wait_beyond(3)

    def last(self, rank: int) -> tuple[int, int]:
        """The newest step of a rank, and the process that made it; 0, 0 before the first."""
        path = self.folder / f"steps-{rank}"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line in reversed(lines):
            step, _, pid = line.partition(b" ")
            if step.isdigit() and pid.isdigit():
                return int(step), int(pid)
        return 0, 0

    def furthest(self) -> int:
        """The highest step of any rank."""
        return max(self.last(rank)[0] for rank in range(self.ranks))

    def wait_beyond(self, step: int, seconds: float = LIMIT) -> bool:
        """Waits until every rank has finished a step after this one; False where the time is over before."""
        end = time.monotonic() + seconds
        while not all(self.last(rank)[0] > step for rank in range(self.ranks)):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def victims(self) -> dict[str, list[int]]:
        """The processes of the run that live now, by what they are."""
        found: dict[str, list[int]] = {"rank": [pid for rank in range(self.ranks) if (pid := self.last(rank)[1])]}
        with contextlib.suppress(OSError, ValueError, KeyError):
            found["supervisor"] = [self.deck.supervisor(self.run)]
        agents = [event["agent_pid"] for event in self.deck.journal(self.run) if event["event"] == "NodeConnected"]
        if agents and is_alive(agents[-1]):
            found["agent"], found["warden"] = [agents[-1]], [parent_of(agents[-1])]
        with contextlib.suppress(
            OSError, ValueError, TypeError
        ):  # a fork of the template has the name of the template's command
            noted = json.loads((self.deck.folder(self.run) / "nodes" / "localhost" / "agent.json").read_bytes())
            found["store"] = [noted["store"]["pid"]]
        for process in self.deck.processes():
            if "template" in process.command:
                found.setdefault("template", []).append(process.pid)
        return {
            kind: alive for kind, pids in found.items() if (alive := [pid for pid in pids if pid > 1 and is_alive(pid)])
        }

    def hurt(self, dice: random.Random) -> str:
        """One fault. Returns what it was."""
        victims = self.victims()
        kind = dice.choice(sorted(victims))
        pid = dice.choice(victims[kind])
        if kind == "rank" and dice.random() < 0.2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            return "rank stopped"
        kill_hard(pid)
        return kind

    def finish(self, step: int) -> str:
        """Lets the run end at a step. Returns the step and the digest of the parameters."""
        (self.folder / "finish.new").write_text(str(step))
        (self.folder / "finish.new").rename(self.folder / "finish")
        self.deck.wait_state(self.run, "succeeded", seconds=LIMIT)
        return (self.folder / "result").read_text()


def undisturbed(folder: Path, backend: str, ranks: int, step: int) -> str:
    """The result of the same training without a fault."""
    soak = Soak(folder, backend, ranks)
    (folder / "finish").write_text(str(step))
    soak.run = soak.deck.launch(soak.profile)
    return soak.finish(step)


def shake(soak: Soak, kills: int, seed: int, say: Callable[[str], None]) -> dict[str, object]:
    """Does the faults, one after the other; one of five comes with a second one at once."""
    dice, faults, seconds, commands = random.Random(seed), Counter[str](), [], 0
    while sum(faults.values()) < kills:
        time.sleep(dice.uniform(0.0, 1.5))
        began = time.monotonic()
        kinds = [soak.hurt(dice) for _ in range(1 + (dice.random() < 0.2))]
        before = soak.furthest() + 1  # ranks are one step apart at most: one that was hurt has got no further than this
        faults.update(kinds)
        if not soak.wait_beyond(before):
            commands += 1
            say(f"no step within {LIMIT:g} s after {kinds}: {soak.deck('status', soak.run).stdout}")
            if not soak.wait_beyond(before):
                raise SystemExit(f"the run does not train again after {kinds}")
        seconds.append(time.monotonic() - began)
        say(f"{sum(faults.values())}: {' and '.join(kinds)}: next step after {seconds[-1]:.1f} s")
    ordered = sorted(seconds)
    return {
        "faults": dict(faults),
        "commands": commands,
        "median_seconds": statistics.median(ordered),
        "p90_seconds": ordered[int(0.9 * (len(ordered) - 1))],
        "longest_seconds": ordered[-1],
    }


def main() -> None:
    """Prints what was survived, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=("gloo", "mpi"), default="gloo")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak") as first, tempfile.TemporaryDirectory(prefix="soak") as second:
        soak = Soak(Path(first), options.backend, options.ranks)
        try:
            soak.start()
            found = shake(soak, options.kills, options.seed, lambda line: print(line, file=sys.stderr, flush=True))
            step = soak.furthest() + 20
            result = soak.finish(step)
            found["steps"] = step
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                soak.deck.stop_everything()
        time.sleep(2)
        found["processes_left"] = len(soak.deck.processes())
        found["bit_identical"] = result == undisturbed(Path(second), options.backend, options.ranks, step)
        print(json.dumps(found, indent=1))
    if not found["bit_identical"] or found["processes_left"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
