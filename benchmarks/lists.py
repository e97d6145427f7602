"""What lists of many ended runs cost: `ps`, `ps --all`, `runs`, and the history of the app, for the first time and again.

    python benchmarks/lists.py [--runs 10000] [--root OTHER_CHECKOUT]

One run of `smoke` is launched, and copied under other names: its summary, plan, profile and journal are files of their own, the others hard links.
Prints wall seconds, and processor seconds of the command. `first` has no index; `again` is the median of five. `--root`: the checkout
whose commands are measured with the same runs, to compare two.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OWN = ("summary.json", "plan.json", "profile.toml", "journal.jsonl")  # files that name their run, or whose times matter

LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"

APP = """
import asyncio, time
from engine.client.engine import LocalEngine
from tui.app import RankdeckApp
from tui.screens.history import HistoryScreen

async def main():
    app = RankdeckApp(LocalEngine())
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.screen.query("#runs") or app.screen.query_one("#runs").option_count < min(COUNT, 200):
            await asyncio.sleep(0.01)
        for turn in range(3):
            began, cpu, longest, last = time.perf_counter(), time.process_time(), 0.0, time.perf_counter()
            app.push_screen(HistoryScreen())
            while True:
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
                if isinstance(app.screen, HistoryScreen) and app.screen.query_one("#history").option_count >= min(COUNT, 200):
                    break
            print(f"{time.perf_counter() - began:.3f} {time.process_time() - cpu:.3f} {longest:.3f}", flush=True)
            app.pop_screen()
            await asyncio.sleep(0.5)

asyncio.run(main())
"""
"""Opens the history three times; prints seconds and processor seconds until it shows them, and the longest time without an answer."""


def copy_runs(runs: Path, count: int) -> None:
    """Copies the one run there is until there are `count`, each launched a second after the one before."""
    first = next(runs.iterdir())
    begin = time.time() - count
    for number in range(1, count):
        name, digits, left = first.name.rpartition("-")[0], "", number
        for _ in range(4):
            left, digit = divmod(left, len(LETTERS))
            digits = LETTERS[digit] + digits
        folder = runs / f"{name}-{digits}"
        shutil.copytree(first, folder, copy_function=os.link)
        for file in OWN:
            text = (first / file).read_text().replace(first.name, folder.name)
            if file == "profile.toml":
                text = text.replace("schema = 1", f'schema = 1\ndescription = "{number}"')
            if file == "summary.json":
                found = json.loads(text)
                found |= {"launched_at": begin + number, "ended_at": begin + number + 1}
                text = json.dumps(found)
            (folder / file).unlink()
            (folder / file).write_text(text)
        os.utime(folder / "plan.json", (begin + number, begin + number))
        os.utime(folder / "journal.jsonl", (begin + number, begin + number))


def timed(argv: list[str]) -> tuple[float, float, str]:
    """Wall and processor seconds of a command, and its output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, output


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--home", type=Path, help="runs of an earlier call, which are not made again")
    parser.add_argument("--no-app", action="store_true")
    options = parser.parse_args()
    venv = options.root / ".venv" / "bin"
    with tempfile.TemporaryDirectory(prefix="lists") as folder:
        home = options.home or Path(folder) / "home"
        os.environ |= {"RANKDECK_HOME": str(home), "XDG_RUNTIME_DIR": str(Path(folder) / "runtime")}
        (Path(folder) / "runtime").mkdir(mode=0o700)
        if not home.exists():
            home.mkdir(mode=0o700)
            subprocess.run([venv / "rankdeck", "launch", "smoke"], check=True, capture_output=True)
            subprocess.run([venv / "rankdeck", "clean", "--template"], check=False, capture_output=True)
            copy_runs(home / "runs", options.runs)
        print(f"{options.runs} runs; load {os.getloadavg()[0]:.1f}\n{'':10} first: wall, cpu   again: wall, cpu")
        for words in (["ps"], ["ps", "--all"], ["runs"]):
            argv = [str(venv / "rankdeck"), *words]
            first, again = timed(argv), [timed(argv) for _ in range(5)]
            wall, cpu = statistics.median(one[0] for one in again), statistics.median(one[1] for one in again)
            print(f"{' '.join(words):10} {first[0]:11.2f} {first[1]:5.2f} {wall:11.2f} {cpu:5.2f}", flush=True)
        if not options.no_app:
            script = APP.replace("COUNT", str(options.runs))
            print("history of the app: seconds to open, processor seconds, longest without an answer")
            print(timed([str(venv / "python"), "-c", script])[2])


if __name__ == "__main__":
    main()
