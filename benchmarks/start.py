"""How soon ranks train: rankdeck beside torchrun, in one run, with the same script.

From the launch to the moment when the last rank has finished its first all-reduce, and to its first optimizer step. `cold`: the
command, with nothing running before. `warm`: a launch by a front end whose cursor has rested on the profile, as in the app.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
reduced = time.time()
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 64)).square().sum().backward()
optimizer.step()
stepped = time.time()
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".new"), "w") as file:
    file.write(f"{reduced} {stepped}")
os.rename(file.name, file.name[:-4])
dist.destroy_process_group()
"""
Times = tuple[float, float]
"""Seconds to the first all-reduce and to the first optimizer step of the slowest rank."""


def read_times(folder: Path, ranks: int, began: float) -> Times:
    """What the slowest rank has written down."""
    rows = [[float(word) for word in (folder / str(rank)).read_text().split()] for rank in range(ranks)]
    return max(row[0] for row in rows) - began, max(row[1] for row in rows) - began


def write_profile(folder: Path, script: Path, ranks: int) -> Path:
    """A profile that runs the script."""
    profile = folder / "start.toml"
    profile.write_text(
        f'schema = 1\nname = "start"\n[layout]\nranks_per_node = {ranks}\n[recipe]\nscript = "{script}"\nargs = ["{folder}"]\n'
    )
    return profile


def torchrun(script: Path, ranks: int, folder: Path) -> Times:
    """`torchrun --standalone`."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    began = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*argv, str(script), str(folder)], check=False, capture_output=True, text=True, env=environment
    )
    if done.returncode:  # while it ended: what counts was written down before
        said = next((line for line in done.stderr.splitlines() if "Error" in line), "no word of why")
        print(f"  torchrun: exit {done.returncode}: {said}", file=sys.stderr)
    return read_times(folder, ranks, began)


def cold(script: Path, ranks: int, folder: Path) -> Times:
    """`rankdeck launch`, with nothing running before."""
    profile = write_profile(folder, script, ranks)
    argv = [sys.executable, str(ROOT / "rankdeck_command.py"), "launch", "--cold", str(profile)]
    began = time.time()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return read_times(folder, ranks, began)


def warm(script: Path, ranks: int, folder: Path) -> Times:
    """A launch by a front end that has looked at the profile for some seconds."""
    from engine.client.engine import LocalEngine
    from engine.client.run import LocalRun
    from engine.planning.profiles import read_profile
    from engine.runs.listing import find_run

    profile = read_profile(write_profile(folder, script, ranks))

    async def launch() -> float:
        engine = LocalEngine()
        await engine.prewarm(profile)
        await asyncio.sleep(6)
        began = time.time()
        run = LocalRun(find_run(await engine.launch(profile)))
        async for _ in run.subscribe():
            pass
        return began

    return read_times(folder, ranks, asyncio.run(launch()))


def measure(start: Callable[[Path, int, Path], Times], script: Path, ranks: int) -> Times:
    """One start, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="start") as folder:
        os.environ["RANKDECK_HOME"] = str(Path(folder) / "home")
        return start(script, ranks, Path(folder))


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without-torchrun", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    starts = [cold, warm] if options.without_torchrun else [torchrun, cold, warm]
    found: dict[int, dict[str, Times]] = {}
    with tempfile.TemporaryDirectory(prefix="start") as folder:
        script = Path(folder) / "start.py"
        script.write_text(SCRIPT)
        for ranks in options.ranks:
            runs: dict[str, list[Times]] = {start.__name__: [] for start in starts}
            for _ in range(options.repeat):
                for start in starts:
                    runs[start.__name__].append(measure(start, script, ranks))
                    print(f"  {ranks} ranks, {start.__name__}: {runs[start.__name__][-1]}", file=sys.stderr)
            found[ranks] = {
                name: (statistics.median(one[0] for one in times), statistics.median(one[1] for one in times))
                for name, times in runs.items()
            }
    if options.json:
        print(json.dumps(found))
        return
    print(f"seconds from launch to first all-reduce / first optimizer step, median of {options.repeat}")
    for ranks, rows in found.items():
        for name, (reduced, stepped) in rows.items():
            peer = rows.get("torchrun")
            ratio = (
                f"   {peer[0] / reduced:6.1f} and {peer[1] / stepped:6.1f} times as fast as torchrun" if peer else ""
            )
            print(f"  {ranks:3} ranks  {name:9} {reduced:7.3f} {stepped:7.3f}{ratio}")


if __name__ == "__main__":
    main()
