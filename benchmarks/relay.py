"""How fast output is relayed: rankdeck beside torchrun, mpirun and a plain redirect, in one run, on the same lines.

A redirect, `python -u script > file` for each rank, is the limit: nobody reads the lines. Four ranks print numbered lines that carry a metric. Each launcher stores or passes on every line with the rank's name in front
of it, into a file; rankdeck also reads the metric of every line. Start-up is measured with one line a rank and taken off. Lines per
second count all ranks together, from the first line to the last one stored; those "of the ranks" only the time in which they print.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import sys
import time
write, begin = sys.stdout.write, time.perf_counter()
for i in range(int(sys.argv[1])):
    write(f"step {i} loss={2.5 + i % 100 / 1000:.4f} and some more text of a line\\n")
sys.stdout.flush()
with open(sys.argv[2], "a") as file:
    file.write(f"{time.perf_counter() - begin}\\n")
"""
PRINTED = "seconds.txt"  # where each rank writes how long it has printed


def rankdeck(script: Path, ranks: int, lines: int, folder: Path) -> None:
    """A following launch, its standard output in a file; it returns when everything is printed, stored and read."""
    profile = folder / "relay.toml"
    profile.write_text(
        f'schema = 1\nname = "relay"\n[layout]\nranks_per_node = {ranks}\n[recipe]\nscript = "{script}"\nargs = ["{lines}", "{folder / PRINTED}"]\n'
    )
    environment = dict(os.environ, RANKDECK_HOME=str(folder / "home"))
    with (folder / "rankdeck.txt").open("wb") as out:
        argv = [sys.executable, str(ROOT / "rankdeck_command.py"), "launch", "--cold", str(profile)]
        subprocess.run(argv, env=environment, stdout=out, stderr=subprocess.DEVNULL, check=True)
    _expect(folder / "rankdeck.txt", ranks * lines)


def torchrun(script: Path, ranks: int, lines: int, folder: Path) -> None:
    """`torchrun --tee 3`: log files, and the console with a prefix."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--tee=3"]
    argv += [f"--log-dir={folder / 'torchrun-logs'}", str(script), str(lines), str(folder / PRINTED)]
    with (folder / "torchrun.txt").open("wb") as out:
        subprocess.run(argv, stdout=out, stderr=subprocess.DEVNULL, check=True)
    _expect(folder / "torchrun.txt", ranks * lines)


def mpirun(script: Path, ranks: int, lines: int, folder: Path) -> None:
    """`mpirun --tag-output`: the console with a tag; nothing is stored but that."""
    argv = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output", "-np", str(ranks)]
    with (folder / "mpirun.txt").open("wb") as out:
        argv += [sys.executable, "-u", str(script), str(lines), str(folder / PRINTED)]
        subprocess.run(argv, stdout=out, check=True)
    _expect(folder / "mpirun.txt", ranks * lines)


def redirect(script: Path, ranks: int, lines: int, folder: Path) -> None:
    """One process for each rank, its standard output in a file."""
    argv = [sys.executable, "-u", str(script), str(lines), str(folder / PRINTED)]
    with contextlib.ExitStack() as files:
        outs = [files.enter_context((folder / f"{rank}.txt").open("wb")) for rank in range(ranks)]
        for process in [subprocess.Popen(argv, stdout=out, start_new_session=True) for out in outs]:
            process.wait()


def _expect(output: Path, lines: int) -> None:
    with output.open("rb") as file:
        found = sum(b" loss=" in line for line in file)
    if found != lines:
        print(f"  note: {output.name} holds {found} of {lines} lines", file=sys.stderr)


def measure(
    launch: Callable[[Path, int, int, Path], None], script: Path, ranks: int, lines: int
) -> tuple[float, float]:
    """Seconds of one launch, in a folder of its own, and those in which a rank prints, the mean of all."""
    with tempfile.TemporaryDirectory(prefix="relay") as folder:
        begin = time.perf_counter()
        launch(script, ranks, lines, Path(folder))
        seconds = time.perf_counter() - begin
        return seconds, statistics.mean(map(float, Path(folder, PRINTED).read_text().split()))


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    launchers = [redirect, rankdeck, torchrun] + ([mpirun] if shutil.which("mpirun") else [])
    rates: dict[str, list[float]] = {launch.__name__: [] for launch in launchers}
    printing: dict[str, list[float]] = {launch.__name__: [] for launch in launchers}
    with tempfile.TemporaryDirectory(prefix="relay") as folder:
        script = Path(folder) / "lines.py"
        script.write_text(SCRIPT)
        for _ in range(options.repeat):
            for launch in launchers:
                start, _ = measure(launch, script, options.ranks, 1)
                whole, printed = measure(launch, script, options.ranks, options.lines)
                rates[launch.__name__].append(options.ranks * options.lines / max(whole - start, 1e-3))
                printing[launch.__name__].append(options.ranks * options.lines / printed)
                print(f"  {launch.__name__}: start {start:.1f} s, whole {whole:.1f} s", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    of_ranks = {name: statistics.median(values) for name, values in printing.items()}
    if options.json:
        print(json.dumps({"lines_per_second": medians, "runs": rates, "of_ranks": of_ranks}))
        return
    print(f"{options.ranks} ranks x {options.lines} lines, median of {options.repeat}")
    for name, rate in medians.items():
        ratio, of_rank = medians["rankdeck"] / rate, of_ranks["rankdeck"] / of_ranks[name]
        print(f"  {name:9} {rate:12,.0f} lines/s   rankdeck is {ratio:.2f} times as fast", end="; ")
        print(f"{of_ranks[name]:12,.0f} lines/s of the ranks, which are {of_rank:.2f} times as fast under rankdeck")


if __name__ == "__main__":
    main()
