"""What scripts of different kinds have saved when their run is ended on purpose, and what rankdeck says: the table of docs/reliability.md."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.slurm.lab import Slurm  # noqa: E402
from tests.support import COMMAND, LIGHT, Deck, wait_until  # noqa: E402

LIMIT = 180.0  # seconds for a run to start, and to end

LOOP = """
import os, signal, sys, time, zipfile
rank, asked = int(os.environ["RANK"]), []
def save(step, seconds):
    if rank == 0:
        os.makedirs("ckpt", exist_ok=True)
        with zipfile.ZipFile(f"ckpt/step_{step}.pt", "w") as archive, archive.open("data", "w") as file:
            for _ in range(1 + int(5 * seconds)):
                file.write(os.urandom(1 << 16))
                archive.fp.flush()
                time.sleep(0.2 if seconds else 0)
for number in SIGNALS:
    signal.signal(number, lambda number, frame: asked.append(number))
for step in range(1, 100000):
    time.sleep(0.05)
    print(f"step {step} loss {1 / step}", flush=True)
    if EVERY and step % EVERY == 0:
        save(step, 0)
    if asked and SECONDS is not None:
        save(step, SECONDS)
        sys.exit(0)
"""
"""A training: on one of SIGNALS rank 0 saves for SECONDS (None: nothing is done); it also saves after EVERY steps."""

TERM = (signal.SIGTERM,)
ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)

TORCH = """
import os, signal, sys, time, torch, rankdeck
import torch.distributed as dist, torch.distributed.checkpoint as dcp
asked = []
model = torch.nn.Linear(64, 64)
"""

DCP = (
    TORCH
    + """
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
rankdeck.init_process_group()
for step in range(1, 100000):
    time.sleep(0.05)
    rankdeck.log(step=step)
    stops = torch.tensor(float(bool(asked)))
    dist.all_reduce(stops)
    if stops:
        dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"ckpt/step_{step}").result()
        sys.exit(0)
"""
)

ELASTIC = (
    TORCH
    + """
state = rankdeck.elastic.State(step=0, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
@rankdeck.elastic.run(state)
def train():
    ddp = torch.nn.parallel.DistributedDataParallel(state.model)
    while True:
        state.optimizer.zero_grad()
        ddp(torch.ones(1, 64)).sum().backward()
        state.optimizer.step()
        state.step += 1
        rankdeck.log(step=state.step)
        time.sleep(0.05)
train()
"""
)


TRAINER = """
import time, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
class Slow(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        time.sleep(0.05)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
args = TrainingArguments(
    "ckpt", max_steps=100000, logging_steps=5, save_strategy="no", report_to=[], enable_jit_checkpoint=True, use_cpu=True,
)
Trainer(Model(), args, train_dataset=data, callbacks=[Slow()]).train()
"""

LIGHTNING = """
import os, signal, time, torch, lightning
from lightning.pytorch.plugins.environments import SLURMEnvironment
names = {"PROCID": "RANK", "LOCALID": "LOCAL_RANK", "NTASKS": "WORLD_SIZE", "NTASKS_PER_NODE": "LOCAL_WORLD_SIZE"}
os.environ.update({f"SLURM_{name}": os.environ[of] for name, of in names.items()}, SLURM_NODEID="0")
os.environ.setdefault("SLURM_JOB_ID", "1")
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        time.sleep(0.05)
        loss = self.layer(batch).square().mean()
        print(f"step {self.global_step} loss {loss.item()}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
data = torch.utils.data.DataLoader(torch.randn(1000000, 8), batch_size=8)
lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir="ckpt",
    plugins=[SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)],
).fit(Model(), data)
"""


def loop(signals: tuple[signal.Signals, ...], seconds: float | None, every: int) -> str:
    values = f"SIGNALS, SECONDS, EVERY = {tuple(map(int, signals))}, {seconds}, {every}\n"
    return values + LOOP


SCRIPTS = {
    "SIGTERM handler, saves at once": loop(TERM, 0, 0),
    "SIGTERM handler, saves for 15 s": loop(TERM, 15, 0),
    "SIGTERM handler, saves for 60 s": loop(TERM, 60, 0),
    "SIGUSR1 handler, `stop_ladder` names it": loop((signal.SIGUSR1,), 3, 0),
    "no handler, saves after 20 steps": loop((), None, 20),
    "`rankdeck.elastic`": ELASTIC,
    "SIGTERM handler, `dcp.async_save`": DCP,
    "ignores every signal, saves after 20 steps": loop(ALL, None, 20),
}

OF_LIBRARIES = {
    "transformers' Trainer, `enable_jit_checkpoint`": TRAINER,
    "Lightning, `SLURMEnvironment`, `stop_ladder` names SIGUSR1": LIGHTNING,
}
"""Scripts that need the folder of `--libraries`."""

WAYS = ("stop", "Ctrl-C in launch", "Ctrl-C in launch, three times", "SIGTERM to the supervisor")

OF_SLURM = {
    "time limit": ("scontrol", "update", "jobid={job}", "endtime=now+2"),
    "preemption": ("sbatch", "--partition=urgent", "--nodelist={node}", "--output=/dev/null", "--wrap", "sleep 1"),
    "scancel": ("scancel", "{job}"),
}
"""How Slurm ends a job, without `warn`."""

KILL_WAIT = 30
"""Seconds between SIGTERM and SIGKILL, Slurm's default."""

PROFILE = """
schema = 1
name = "stops"
backend = {{ name = "gloo" }}
layout = {{ {layout} }}
recipe = {{ script = "{folder}/train.py" }}
env = {{ PYTHONPATH = "{path}" }}
[launch]
workdir = "{folder}"
{ladder}
"""


def write(folder: Path, script: str, libraries: str, layout: str) -> None:
    """Writes a script and its profile."""
    folder.mkdir()
    (folder / "train.py").write_text({**SCRIPTS, **OF_LIBRARIES}[script])
    ladder = 'stop_ladder = [["SIGUSR1", 30], ["SIGTERM", 10], ["SIGKILL", 5]]' if "USR1" in script else ""
    path = libraries if script in OF_LIBRARIES else LIGHT
    (folder / "stops.toml").write_text(PROFILE.format(path=path, folder=folder, ladder=ladder, layout=layout))


def said_of(deck: Deck, run: str) -> str:
    """What is said of a run that has ended."""
    status = deck.status(run)
    said: str = status["saved"]["words"] if status["saved"] else "nothing"
    return said


def end_job(deck: Deck, slurm: Slurm, script: str, way: str, folder: Path, libraries: str) -> str:
    """Lets Slurm end the job of a submitted run in one way. Returns what is said of it."""
    write(folder, script, libraries, "slurm = { nodes = 1, ranks_per_node = 2 }")
    run = deck.launch(folder / "stops.toml", "--cold")
    wait_until(lambda: (deck.status(run)["step"] or 0) >= 30, LIMIT, f"steps of {script}")
    job = json.loads((deck.folder(run) / "job.json").read_text())["job"]
    node = slurm.run("squeue", "-h", "-j", job, "-o", "%N")
    slurm.run(*(word.format(job=job, node=node) for word in OF_SLURM[way]))
    wait_until(lambda: deck.status(run)["state"] == "failed", LIMIT, f"the end of {script}")
    return said_of(deck, run)


def end(deck: Deck, script: str, way: str, folder: Path, libraries: str) -> str:
    """Ends a run of a script in one way. Returns what is said of it."""
    write(folder, script, libraries, "ranks_per_node = 2")
    words = [*COMMAND, "launch", str(folder / "stops.toml"), "--cold"]
    launch = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + LIMIT
    run = ""
    while time.monotonic() < deadline:
        found = [one.parent for one in deck.home.glob("runs/*/plan.json") if str(folder) in one.read_text()]
        run = found[0].name if found else ""
        if launch.poll() is not None:
            raise SystemExit(launch.communicate()[1])
        if run and (deck.status(run)["step"] or 0) >= 30:
            break
        time.sleep(1)
    if way == "stop":
        deck("stop", run, seconds=LIMIT)
    elif way.startswith("Ctrl-C"):
        for _ in range(3 if "three" in way else 1):
            launch.send_signal(signal.SIGINT)
            time.sleep(2)
    else:
        os.kill(deck.supervisor(run), signal.SIGTERM)
    launch.communicate(timeout=LIMIT)
    return said_of(deck, run)


@contextlib.contextmanager
def cluster(*, slurm: bool) -> Iterator[Slurm | None]:
    """A Slurm of two nodes; None if it is not wanted."""
    if not slurm:
        yield None
        return
    with Slurm(count=2) as found:
        found.conf.write_text(re.sub("(?m)^KillWait=.*$", f"KillWait={KILL_WAIT}", found.conf.read_text()))
        found.run("scontrol", "reconfigure")
        os.environ.update(found.environment)
        yield found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=8, help="runs at the same time")
    parser.add_argument("--slurm", action="store_true", help="let Slurm end jobs, in place of the other ways")
    parser.add_argument(
        "--libraries", default="", help="a folder with transformers and lightning, for two more scripts"
    )
    options = parser.parse_args()
    scripts = [*SCRIPTS, *(OF_LIBRARIES if options.libraries else ())]
    ways = [*OF_SLURM] if options.slurm else [*WAYS]
    with cluster(slurm=options.slurm) as slurm, tempfile.TemporaryDirectory(prefix="stops") as temporary:
        base = Path(temporary)
        os.environ.update(RANKDECK_HOME=str(base / "home"), XDG_RUNTIME_DIR=str(base / "r"), RANKDECK_LINGER="off")
        (base / "r").mkdir(mode=0o700)
        deck = Deck(base / "home")
        one = partial(end_job, deck, slurm) if slurm else partial(end, deck)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            said = {
                (script, way): pool.submit(one, script, way, base / f"{row}-{column}", options.libraries)
                for column, way in enumerate(ways)
                for row, script in enumerate(scripts)
            }
            print("| script | " + " | ".join(ways) + " |\n" + "|---" * (1 + len(ways)) + "|", flush=True)
            for script in scripts:
                print(f"| {script} | " + " | ".join(said[script, way].result() for way in ways) + " |", flush=True)
        deck.stop_everything()


if __name__ == "__main__":
    main()
