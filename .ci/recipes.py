"""Runs each recipe of the installed package for a few steps, with two ranks: `python recipes.py`. Files go to the current folder.

torch is imported once, and each rank is a fork.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

import torch.distributed as dist

import rankdeck

FEW = {"steps": "3", "epochs": "1", "repeat": "2", "seconds": "0.001", "start_method": "fork"}
"""Values of the parameters that decide how long a recipe takes."""

RANKS = 2
SECONDS = 600


def run_rank(script: Path, words: list[str], rank: int, port: int, log: Path) -> None:
    """In a fork: runs a script as a rank, and ends the process."""
    status = 1
    try:
        signal.alarm(SECONDS)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True", RANKDECK_BACKEND="gloo")
        sys.argv = [str(script), *words]
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)  # threads of gloo that still run when an interpreter ends can abort it


def fails(script: Path) -> bool:
    """Runs one recipe. Prints its output if a rank has failed."""
    source = script.read_text(encoding="utf-8")
    words = ["--preset", "small"] if "presets=" in source else []
    for name, value in FEW.items():
        if f"\n    {name}: " in source:
            words += [f"--{name.replace('_', '-')}", value]
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    logs = [Path(f"{script.stem}.{rank}.log") for rank in range(RANKS)]
    pids = []
    for rank, log in enumerate(logs):
        if (pid := os.fork()) == 0:
            run_rank(script, words, rank, store.port, log)
        pids.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]  # of all: `any` alone would stop at the first
    if any(statuses):
        print(f"{script.name} {' '.join(words)}", *(log.read_text(errors="replace") for log in logs), sep="\n")  # noqa: T201
    return any(statuses)


def main() -> int:
    """Runs all of them. Returns 1 if one has failed."""
    scripts = sorted(Path(rankdeck.__file__).parent.glob("recipes/[!_]*.py"))
    failed = [script.name for script in scripts if fails(script)]
    print(f"recipes: {len(scripts) - len(failed)} of {len(scripts)} ran with {RANKS} ranks")  # noqa: T201
    return 1 if failed or not scripts else 0


if __name__ == "__main__":
    sys.exit(main())
