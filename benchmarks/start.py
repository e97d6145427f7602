"""How soon ranks train, and how long a command takes: rankdeck beside torchrun, in turns, with the same script.

From the launch to the moment when the last rank has finished its first all-reduce, to its first optimizer step, and to the end of the
command. `cold`: the command, with nothing running before. `shell`: the command again, with the template that the first one has left. `app`:
a launch by a front end whose cursor rests on the profile. `--loop`: launches one after another without a pause, as `for` in a shell makes them; then
two such loops at once; with the processes and the memory of what runs before, during and after. `import`: what `python -c "import torch, torch._dynamo"` takes, below which no
cold start can be. With `--trainer`, the script is one of transformers' Trainer, in the environment of tests/programs, where it imports deepspeed too.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from launches import memory, own_processes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COMMAND = [sys.executable, str(ROOT / "rankdeck_command.py")]

NOTE = """
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".new"), "w") as file:
    file.write(f"{reduced} {stepped}")
os.rename(file.name, file.name[:-4])
"""

SCRIPT = f"""
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
{NOTE}dist.destroy_process_group()
"""

TRAINER = f"""
import os, sys, time, torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x, labels):
        return {{"loss": ((self.weight[0] * x + self.weight[1] - labels) ** 2).mean()}}

class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        global stepped
        stepped = time.time()

x = torch.linspace(-1.0, 1.0, 128)
data = [{{"x": one, "labels": 2 * one + 1}} for one in x]
arguments = TrainingArguments(sys.argv[1] + "/out", max_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
Trainer(Line(), arguments, train_dataset=data, callbacks=[Clock()]).train()
reduced = stepped
{NOTE}os._exit(0)
"""
"""gloo's threads can stop an interpreter that ends by itself. The first step stands for the first all-reduce."""

SETTLE_TIME = 120.0  # seconds within which a standby is ready


class Times(NamedTuple):
    """Seconds to the first all-reduce and the first optimizer step of the slowest rank, and to the end of the command."""

    reduced: float
    stepped: float
    whole: float


class Job(NamedTuple):
    """What is launched, with a folder of its own."""

    python: str
    script: Path
    ranks: int
    preload: tuple[str, ...]
    folder: Path

    def times(self, began: float) -> Times:
        """What the slowest rank has written down, at the end of the command."""
        ended = time.time()
        rows = [[float(word) for word in (self.folder / str(rank)).read_text().split()] for rank in range(self.ranks)]
        for rank in range(self.ranks):
            (self.folder / str(rank)).unlink()
        return Times(max(row[0] for row in rows) - began, max(row[1] for row in rows) - began, ended - began)

    def profile(self) -> Path:
        """A profile that runs the script."""
        path = self.folder / "start.toml"
        launch = f"python = {json.dumps(self.python)}\npreload = {json.dumps(self.preload)}"
        path.write_text(
            f'schema = 1\nname = "start"\n[layout]\nranks_per_node = {self.ranks}\n[launch]\n{launch}\n'
            f'[recipe]\nscript = "{self.script}"\nargs = ["{self.folder}"]\n'
        )
        return path

    def wait_until_warm(self) -> None:
        """Waits until a standby has forked the ranks and the store ahead."""
        end = time.monotonic() + SETTLE_TIME
        while time.monotonic() < end:
            words = [_command_line(pid) for pid in own_processes(Path(os.environ["RANKDECK_HOME"]))]
            if sum(line.startswith("rankdeck: template") for line in words) == self.ranks + 2:
                return
            time.sleep(0.1)
        sys.exit("no standby was ready")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def rankdeck(*words: str | Path) -> None:
    subprocess.run([*COMMAND, *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def torchrun(job: Job) -> Times:
    """`torchrun --standalone`."""
    argv = [job.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.time()
    done = subprocess.run(
        [*argv, str(job.script), str(job.folder)], check=False, capture_output=True, text=True, env=environment
    )
    if done.returncode:  # while it ended: what counts was written down before
        said = next((line for line in done.stderr.splitlines() if "Error" in line), "no word of why")
        print(f"  torchrun: exit {done.returncode}: {said}", file=sys.stderr)
    return job.times(began)


def cold(job: Job) -> Times:
    """`rankdeck launch`, with nothing running before."""
    profile = job.profile()
    began = time.time()
    rankdeck("launch", "--cold", profile)
    return job.times(began)


def shell(job: Job) -> Times:
    """`rankdeck launch`, after another one."""
    profile = job.profile()
    began = time.time()
    rankdeck("launch", profile)
    job.times(began)
    began = time.time()
    rankdeck("launch", profile)
    times = job.times(began)
    rankdeck("clean", "--template")
    return times


def app(job: Job) -> Times:
    """A launch by a front end that has looked at the profile until its standby was ready."""
    from engine.client.engine import LocalEngine
    from engine.client.run import LocalRun
    from engine.gate import LAUNCHED
    from engine.planning.profiles import read_profile
    from engine.runs.listing import find_run

    profile = read_profile(job.profile())

    async def launch() -> float:
        engine = LocalEngine()
        await engine.prewarm(profile, LAUNCHED)
        await asyncio.to_thread(job.wait_until_warm)
        began = time.time()
        run = LocalRun(find_run(await engine.launch(profile)))
        async for _ in run.subscribe():
            pass
        return began

    times = job.times(asyncio.run(launch()))
    rankdeck("clean", "--template")
    return times


STARTS: dict[str, Callable[[Job], Times]] = {start.__name__: start for start in (torchrun, cold, shell, app)}


def import_time(python: str) -> float:
    """Seconds of the imports alone."""
    began = time.time()
    subprocess.run([python, "-c", "import torch, torch._dynamo"], check=True)
    return time.time() - began


def measure(start: Callable[[Job], Times], job: Job) -> Times:
    """One start, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="start") as folder:
        os.environ["RANKDECK_HOME"] = str(Path(folder) / "home")
        return start(job._replace(folder=Path(folder)))


class Use(NamedTuple):
    """Processes of rankdeck and their own memory, in megabytes; shared pages are divided among them."""

    processes: int
    memory: float

    @classmethod
    def now(cls) -> Use:
        """Of this moment."""
        pids = own_processes(Path(os.environ["RANKDECK_HOME"]))
        return cls(len(pids), memory(pids))


def one_after_another(start: Callable[[Job], Times], job: Job, launches: int) -> list[Times]:
    """A loop of launches, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="loop") as name:
        return [start(job._replace(folder=Path(name))) for _ in range(launches)]


def shell_again(job: Job) -> Times:
    """`rankdeck launch`, after whatever was before."""
    began = time.time()
    rankdeck("launch", job.profile())
    return job.times(began)


def loop(job: Job, launches: int) -> dict[str, list[Times]]:
    """Loops of both launchers, then two loops of rankdeck at once. Prints processes and memory."""
    with tempfile.TemporaryDirectory(prefix="start") as folder, ThreadPoolExecutor(2) as both:
        os.environ["RANKDECK_HOME"] = str(Path(folder) / "home")
        found = {"torchrun": one_after_another(torchrun, job, max(2, launches // 3))}
        uses = [Use.now()]
        found["rankdeck"] = one_after_another(shell_again, job, 1)
        uses.append(Use.now())
        loops = both.submit(one_after_another, shell_again, job, launches - 1)
        highest = uses[-1]
        while not loops.done():
            highest = max(highest, Use.now(), key=lambda use: use.memory)
            time.sleep(0.2)
        found["rankdeck"] += loops.result()
        uses += [highest, Use.now()]
        pair = [both.submit(one_after_another, shell_again, job, launches) for _ in range(2)]
        found["two at once"] = [times for one in pair for times in one.result()]
        uses.append(Use.now())
        rankdeck("clean", "--template")
        uses.append(Use.now())
    for when, use in zip(
        ("before", "after the first", "during", "after", "after two loops", "at the end"), uses, strict=True
    ):
        print(f"  {when:16}{use.processes:4} processes {use.memory:7.0f} MB")
    return found


def median(times: list[Times]) -> Times:
    return Times(*(statistics.median(column) for column in zip(*times, strict=True)))


def table(found: dict[str, Times], ranks: int) -> None:
    """Prints the medians, and how many times as fast as torchrun's they are."""
    base = found.get("torchrun")
    for name, times in found.items():
        row = f"  {ranks:3} ranks  {name:9}" + "".join(f"{seconds:9.3f}" for seconds in times)
        if base and name != "torchrun":
            row += "".join(f"{theirs / ours:8.1f}x" for theirs, ours in zip(base, times, strict=True))
        print(row)


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--trainer", action="store_true", help="a script with transformers' Trainer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loop", type=int, metavar="LAUNCHES", help="so many launches one after another")
    options = parser.parse_args()
    results: dict[int, dict[str, Times]] = {}
    imports: list[float] = []
    with tempfile.TemporaryDirectory(prefix="start") as folder:
        script, python = Path(folder) / "start.py", sys.executable
        preload: tuple[str, ...] = ()
        script.write_text(TRAINER if options.trainer else SCRIPT)
        if options.trainer:
            from tests.programs.environment import make_python

            python, preload = str(make_python(Path(folder) / "environment")), ("transformers.trainer", "deepspeed")
        for ranks in options.ranks:
            job = Job(python, script, ranks, preload, Path(folder))
            if options.loop:
                loops = loop(job, options.loop)
                for name, times in loops.items():
                    print(f"  {name}: " + " ".join(f"{one.whole:.2f}" for one in times))
                table({name: median(times[name == "rankdeck" :]) for name, times in loops.items()}, ranks)
                continue
            runs: dict[str, list[Times]] = {name: [] for name in options.starts}
            for _ in range(options.repeat):
                imports.append(import_time(python))
                for name, times in runs.items():
                    times.append(measure(STARTS[name], job))
                    print(f"  {ranks} ranks, {name}: {times[-1]}", file=sys.stderr, flush=True)
            results[ranks] = {name: median(times) for name, times in runs.items()}
    if options.loop:
        return
    if options.json:
        print(json.dumps({"import": statistics.median(imports), "starts": results}))
        return
    print(
        f"seconds from launch to first all-reduce, first step, end of the command; median of {options.repeat}, and times as fast"
    )
    for ranks, found in results.items():
        table(found, ranks)
    print(f"  import torch, torch._dynamo: {statistics.median(imports):.3f}; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
