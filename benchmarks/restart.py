"""How soon a job trains again after one rank was killed: rankdeck beside torchrun, in one run, with the same script.

Four ranks train with DDP and checkpoint every 50 steps; one is killed with SIGKILL. `kill to step`: until every rank has finished
a step that is further than any before, with the restart being automatic. `key to step`: rankdeck only, from the request of a user
whose run holds. `all ranks restart`: the same script without `rankdeck.elastic`, so that every rank starts again from the newest
checkpoint, as under torchrun. `lost`: steps that had to be done again. torchrun restarts at all only with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SCRIPT = """
import os, sys, time, torch, rankdeck
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
folder, rank = sys.argv[1], os.environ["RANK"]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
state = rankdeck.elastic.State(step=0, model=model, optimizer=torch.optim.AdamW(model.parameters()))
saved = os.path.join(folder, "checkpoint.pt")
if os.path.exists(saved):
    found = torch.load(saved)
    state.step = found["step"]
    model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
steps = open(os.path.join(folder, "steps-" + rank), "a", buffering=1)

@rankdeck.elastic.run(state)
def train():
    ddp = DDP(state.model)
    while True:
        finish = torch.tensor([float(os.path.exists(os.path.join(folder, "finish")))])
        dist.all_reduce(finish)
        if finish.item():
            return
        state.optimizer.zero_grad()
        ddp(torch.randn(8, 64)).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        steps.write(f"{state.step} {time.time()} {os.getpid()}\\n")
        if state.step % 50 == 0 and rank == "0":
            torch.save({"step": state.step, "model": model.state_dict(), "optimizer": state.optimizer.state_dict()}, saved + ".new")
            os.rename(saved + ".new", saved)
        time.sleep(0.01)

train()
"""

NOT_ELASTIC = {
    "@rankdeck.elastic.run(state)\n": "",
    "\ntrain()\n": "\ndist.init_process_group('gloo')\ntrain()\ndist.destroy_process_group()\n",
}
"""What makes `SCRIPT` one without `rankdeck.elastic`."""


def rows(folder: Path, rank: int) -> list[tuple[int, float, int]]:
    """Step, time and pid of every step of a rank."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        (int(step), float(at), int(pid)) for step, at, pid in (line.split() for line in lines if line.count(" ") == 2)
    ]


def wait_steps(folder: Path, ranks: int, step: int, seconds: float = 90.0) -> None:
    """Waits until every rank has finished a step."""
    end = time.monotonic() + seconds
    while not all((found := rows(folder, rank)) and found[-1][0] >= step for rank in range(ranks)):
        if time.monotonic() > end:
            raise SystemExit(f"step {step} was not reached within {seconds:g} s")
        time.sleep(0.02)


def outcome(folder: Path, ranks: int, began: float, before: list[int]) -> dict[str, float]:
    """What a recovery cost, once every rank is further than before."""
    furthest = max(step for rank in range(ranks) for step, at, _ in rows(folder, rank) if at <= began)
    wait_steps(folder, ranks, furthest + 1)
    firsts, again, survivors = [], 0, 0
    for rank in range(ranks):
        later = [row for row in rows(folder, rank) if row[1] > began]
        firsts.append(next(at for step, at, _ in later if step > furthest))
        again = max(again, furthest + 1 - min(step for step, _, _ in later))
        survivors += later[-1][2] == before[rank]
    return {"seconds": max(firsts) - began, "lost": max(0, again), "survivors": survivors}


def kill_one(folder: Path, ranks: int, victim: int) -> tuple[float, list[int]]:
    """Kills a rank in the middle of its work. Returns when, and the pids that trained."""
    wait_steps(folder, ranks, 120)
    pids = [rows(folder, rank)[-1][2] for rank in range(ranks)]
    began = time.time()
    os.kill(pids[victim], signal.SIGKILL)
    return began, pids


def torchrun(script: Path, ranks: int, victim: int, folder: Path) -> dict[str, float]:
    """`torchrun --max-restarts`."""
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--max-restarts=3",
    ]
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*argv, str(script), str(folder)], stderr=subprocess.DEVNULL, env=env) as process:
        try:
            began, pids = kill_one(folder, ranks, victim)
            found = outcome(folder, ranks, began, pids)
            (folder / "finish").touch()
            process.wait(timeout=60)
        finally:
            process.terminate()
    return found


def rankdeck(script: Path, ranks: int, victim: int, folder: Path, *, on_failure: str) -> dict[str, float]:
    """A run of rankdeck; where it holds, the key is pressed once the failure is known."""
    from engine.client.engine import LocalEngine
    from engine.client.run import LocalRun
    from engine.planning.profiles import read_profile
    from engine.runs.listing import find_run

    os.environ["RANKDECK_HOME"] = str(folder / "home")
    path = folder / "restart.toml"
    path.write_text(
        f'schema = 1\nname = "restart"\n[layout]\nranks_per_node = {ranks}\n[recipe]\nscript = "{script}"\nargs = ["{folder}"]\n'
        f'[launch]\non_failure = "{on_failure}"\n'
    )

    async def run() -> dict[str, Any]:
        run = LocalRun(find_run(await LocalEngine().launch(read_profile(path))))
        began, pids = await asyncio.to_thread(kill_one, folder, ranks, victim)
        if on_failure == "hold":
            async for message in run.subscribe():
                if message.run is not None and message.run.state == "holding":
                    break
            await asyncio.sleep(1)  # a person needs longer
            began = time.time()
            await run.restart()
        found = await asyncio.to_thread(outcome, folder, ranks, began, pids)
        (folder / "finish").touch()
        async for _ in run.subscribe():
            pass
        return found

    return asyncio.run(run())


def plain_of(script: Path) -> Path:
    """The script without `rankdeck.elastic`, beside the one with it."""
    return script.with_name("plain.py")


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways = {
        "torchrun, kill to step": torchrun,
        "rankdeck, kill to step": lambda *words: rankdeck(*words, on_failure="restart"),
        "rankdeck, key to step": lambda *words: rankdeck(*words, on_failure="hold"),
        "rankdeck, all ranks restart": lambda script, *words: rankdeck(plain_of(script), *words, on_failure="restart"),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="restart") as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        plain = SCRIPT
        for elastic, without in NOT_ELASTIC.items():
            plain = plain.replace(elastic, without)
        plain_of(script).write_text(plain)
        for turn in range(options.repeat):
            for name, way in ways.items():
                with tempfile.TemporaryDirectory(prefix="restart") as own:
                    runs[name].append(way(script, options.ranks, (2, 0, 1)[turn % 3] % options.ranks, Path(own)))
                print(f"  {name}: {runs[name][-1]}", file=sys.stderr)
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in runs.items()
    }
    if options.json:
        print(json.dumps({"medians": medians, "runs": runs}))
        return
    print(f"{options.ranks} ranks, one killed, median of {options.repeat}")
    peer = medians["torchrun, kill to step"]["seconds"]
    for name, found in medians.items():
        print(
            f"  {name:27} {found['seconds']:7.3f} s, {found['lost']:3.0f} steps lost, {found['survivors']:.0f} of "
            f"{options.ranks} processes kept, {peer / found['seconds']:6.1f} times as fast as torchrun"
        )


if __name__ == "__main__":
    main()
