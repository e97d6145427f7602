"""What it costs to read the output of a rank, in microseconds of processor time a line: the lines of `relay.py` in chunks and one at a
time, and the output of each known trainer (`tests/data/outputs`), whose formats were all seen before, with steps that go on.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.core.metrics.lines.formats import LineFormats, shapes_of  # noqa: E402 - of this tree
from engine.core.metrics.lines.reader import MetricReader  # noqa: E402
from engine.core.metrics.progress import RankProgress  # noqa: E402
from engine.core.metrics.readings import take_lines  # noqa: E402

CHUNK, LINES, STEPS = 65_536, 4000, 100
"""Bytes that are read at once; lines of each trainer; reports of a trainer in one epoch."""

RELAY = [f"step {i} loss={2.5 + i % 100 / 1000:.4f} and some more text of a line\n".encode() for i in range(5 * LINES)]


def output(sample: list[bytes], numbers: random.Random) -> list[bytes]:
    """The lines of a sample again and again; steps and epochs go on, and decimals are other ones."""
    places = [dict(LineFormats().places(line, shapes_of(line)) or []) for line in sample]
    lines = []
    for number in range(LINES // len(sample)):
        for line, at in zip(sample, places, strict=True):
            counts = {at["epoch"]: 1 + number // STEPS} if "epoch" in at else {}
            if "step" in at:
                counts[at["step"]] = 1 + (number % STEPS if counts else number)
            for begin in sorted(counts, reverse=True):
                line = line[:begin] + re.sub(rb"\A\d+", b"%d" % counts[begin], line[begin:])
            other = re.sub(rb"(?<=\.\d)\d+", lambda digits: b"%0*d" % (len(digits[0]), numbers.randrange(10)), line)
            lines.append(other + b"\n")
    return lines


def cost(lines: list[bytes], size: int = CHUNK) -> float:
    """Microseconds a line, the least of three; all formats were seen before. `size` 0: one line at a time."""
    text = b"".join(lines)
    parts = [text[at : at + size] for at in range(0, len(text), size)] if size else lines
    best = float("inf")
    for _ in range(3):
        reader, progress = MetricReader(), RankProgress()
        for begins in (0.0, 1e6):
            begin = time.process_time()
            for number, part in enumerate(parts):
                take_lines(0, progress, begins + number, reader.feed(part))
            spent = time.process_time() - begin
        best = min(best, spent / len(lines) * 1e6)
    return best


def main() -> None:
    """Prints the table."""
    print(f"{cost(RELAY):6.2f} us  lines of relay.py, {CHUNK} bytes at a time")
    print(f"{cost(RELAY, 0):6.2f} us  lines of relay.py, one at a time")
    numbers = random.Random(1)
    formats = tomllib.loads((ROOT / "tests" / "data" / "outputs" / "trainers.toml").read_text())["case"]
    samples = [[line.encode() for line in known["lines"].splitlines()] for known in formats]
    costs = sorted((cost(output(sample, numbers)), known["id"]) for known, sample in zip(formats, samples, strict=True))
    only = [one for one, _ in costs]
    print(
        f"{statistics.median(only):6.2f} us  output of {len(only)} trainers, median; {statistics.mean(only):.2f} on average"
    )
    for one, name in costs[:-6:-1]:
        print(f"{one:6.2f} us  {name}")


if __name__ == "__main__":
    main()
