"""What scripts of different kinds have saved when their run is ended on purpose, and what rankdeck says: the table of docs/reliability.md."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import COMMAND, LIGHT, Deck  # noqa: E402

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

WAYS = ("stop", "Ctrl-C in launch", "Ctrl-C in launch, three times", "SIGTERM to the supervisor")

PROFILE = """
schema = 1
name = "stops"
backend = {{ name = "gloo" }}
layout = {{ ranks_per_node = 2 }}
recipe = {{ script = "{folder}/train.py" }}
env = {{ PYTHONPATH = "{light}" }}
[launch]
workdir = "{folder}"
{ladder}
"""


def end(deck: Deck, script: str, way: str, folder: Path) -> str:
    """Ends a run of a script in one way. Returns what is said of it."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPTS[script])
    ladder = 'stop_ladder = [["SIGUSR1", 30], ["SIGTERM", 10], ["SIGKILL", 5]]' if "USR1" in script else ""
    (folder / "stops.toml").write_text(PROFILE.format(light=LIGHT, folder=folder, ladder=ladder))
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
    status = deck.status(run)
    words_said: str = status["saved"]["words"] if status["saved"] else "nothing"
    return words_said


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=8, help="runs at the same time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stops") as temporary:
        base = Path(temporary)
        os.environ.update(RANKDECK_HOME=str(base / "home"), XDG_RUNTIME_DIR=str(base / "r"), RANKDECK_LINGER="off")
        (base / "r").mkdir(mode=0o700)
        deck = Deck(base / "home")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            said = {
                (script, way): pool.submit(end, deck, script, way, base / f"{row}-{column}")
                for column, way in enumerate(WAYS)
                for row, script in enumerate(SCRIPTS)
            }
            print("| script | " + " | ".join(WAYS) + " |\n" + "|---" * (1 + len(WAYS)) + "|", flush=True)
            for script in SCRIPTS:
                print(f"| {script} | " + " | ".join(said[script, way].result() for way in WAYS) + " |", flush=True)
        deck.stop_everything()


if __name__ == "__main__":
    main()
