"""What one `rankdeck.log` costs, inside and outside rankdeck, beside the ways in which scripts report without it.

Run as `python benchmarks/log_call.py`. Prints microseconds per call (the best of several rounds, each way in a process of its
own) and the ratio to a `print` of the same values to a file, which is what a rank's stdout is under rankdeck.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rankdeck  # noqa: E402 - found beside this folder, installed or not

CALLS = 20_000
ROUNDS = 7
LOSS = 2.345678901


def with_rankdeck(_: Path) -> Callable[[], None]:
    """What a recipe calls every step."""
    return lambda: rankdeck.log(step=120, steps=1000, loss=LOSS, samples=8, tokens=512, lr=0.0012)


def with_print(folder: Path) -> Callable[[], None]:
    """To a file that flushes at each line, as `python -u` has it."""
    file = open(folder / "print.log", "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until the process ends
    return lambda: print(f"step {120}/{1000}  loss {LOSS:.4f}  lr {0.0012:.1e}  {512 / 0.05:,.0f} tok/s", file=file)


def with_json(folder: Path) -> Callable[[], None]:
    """The same line as `rankdeck.log`, by `json.dumps` and one write."""
    fd = os.open(folder / "json.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def call() -> None:
        record = {"t": time.time(), "step": 120, "steps": 1000, "loss": LOSS, "samples": 8, "tokens": 512, "lr": 0.0012}
        os.write(fd, json.dumps(record).encode() + b"\n")

    return call


WAYS: dict[str, tuple[Callable[[Path], Callable[[], None]], bool]] = {
    "print, one line per step": (with_print, False),
    "json.dumps and os.write": (with_json, False),
    "rankdeck.log in a run": (with_rankdeck, True),
    "rankdeck.log outside": (with_rankdeck, False),
}
"""What is measured, and whether `RANKDECK_METRICS` is set for it."""


def measure(way: str, folder: Path) -> float:
    """Microseconds per call, in this process."""
    call = WAYS[way][0](folder)
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def measure_apart(way: str, folder: Path) -> float:
    """Microseconds per call, in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "RANKDECK_METRICS"}
    if WAYS[way][1]:
        env["RANKDECK_METRICS"] = str(folder / "metrics.jsonl")
    command = [sys.executable, __file__, way, str(folder)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Prints the table, or as a child one number."""
    if len(sys.argv) > 1:
        print(measure(sys.argv[1], Path(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as folder:
        micros = {way: measure_apart(way, Path(folder)) for way in WAYS}
    reference = micros["print, one line per step"]
    for way, value in micros.items():
        print(f"{way:<26}{value:>8.2f} µs {value / reference:>6.2f}x")


if __name__ == "__main__":
    main()
