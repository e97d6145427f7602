"""What the app costs and how fast it answers, in a real pty, on a run that a separate process pretends.

    python benchmarks/ui.py [--seconds 20] [--ranks 64] [--lines 50] [--json FILE]

Three figures: the CPU share of the app's process while every rank prints and reports (log of one rank, then of all ranks);
the time from a key to the changed screen under that load; the time to the first paint of home, as a ratio to an empty
Textual app's, started alternately. The pretended supervisor speaks JSON over a Unix socket ten times a second, as the real
one does, so decoding is paid for by the app.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import select
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pexpect
import pexpect.popen_spawn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.core.metrics.resources import ProcessUse, process_use  # noqa: E402
from engine.core.plan.document.places import Places  # noqa: E402
from engine.core.settings import Settings  # noqa: E402
from engine.core.views.view import Snapshot, Update  # noqa: E402
from tests.tui.fake_engine import FakeClient, FakeEngine, FakeRun  # noqa: E402

RUN = "flood-0001"
UPDATES_HZ = 10
STEPS_HZ = 5  # steps, and so points of loss and of throughput, that each rank reports in a second
USAGE_SECONDS = 3  # seconds between two reports of processor time, memory and I/O, as an agent makes them

KEYS = 100
STARTS = 9


# --- the process that pretends a supervisor and its ranks ------------------------------------------------------------


async def supervise(folder: Path, ranks: int, lines: int) -> None:
    """Writes `lines` a second for each rank and tells every connection what changed, until it is killed."""
    run = FakeRun(folder, RUN, ranks=ranks, now=time.time())
    run.change(steps=1_000_000)
    encoder = msgspec.json.Encoder()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for message in FakeClient(run).subscribe():
            writer.write(encoder.encode(message) + b"\n")
            await writer.drain()

    await asyncio.start_unix_server(serve, str(folder / "socket"))
    files = [_opened(run, rank) for rank in range(ranks)]
    period = 1 / UPDATES_HZ
    started, written, step = time.monotonic(), 0, 0
    for turn in range(1_000_000):
        due = round((turn + 1) * period * lines)
        for rank, file in enumerate(files):
            for number in range(written, due):
                file.write(
                    f"\x1b[2m12:00:00\x1b[0m rank {rank} line {number} loss {2 + math.sin(number):.4f}\n".encode()
                )
            file.flush()
        written = due
        run.now = time.time()
        if turn % (UPDATES_HZ // STEPS_HZ) == 0:
            step += 1
            run.tick(step, loss=2 + random.random() / step, throughput=2500 + 100 * random.random(), seconds=0)
        else:
            run.change(ranks=tuple(msgspec.structs.replace(view, out_size=due, seen=run.now) for view in run.ranks))
        if turn % (UPDATES_HZ * USAGE_SECONDS) == 0:
            run.change(ranks=tuple(msgspec.structs.replace(view, process=_some_use()) for view in run.ranks))
        await asyncio.sleep(max(0.0, started + (turn + 1) * period - time.monotonic()))


def _some_use() -> ProcessUse:
    return process_use(
        [random.randrange(80, 110), random.randrange(1 << 30, 1 << 31), 1 << 20, random.randrange(1 << 20)]
    )


def _opened(run: FakeRun, rank: int) -> Any:
    path = run.log_path(0, rank, "out")
    path.parent.mkdir(exist_ok=True)
    return path.open("ab")


# --- the process that is measured ------------------------------------------------------------------------------------


class SocketClient(FakeClient):
    """Reads what the pretended supervisor says."""

    async def subscribe(self) -> AsyncIterator[Snapshot | Update]:
        reader, writer = await asyncio.open_unix_connection(str(self.folder.parent / "socket"), limit=1 << 24)
        decoder = msgspec.json.Decoder(Snapshot | Update)
        try:
            while line := await reader.readline():
                yield decoder.decode(line)
        finally:
            writer.close()


class SocketEngine(FakeEngine):
    """Attaches through the socket."""

    async def attach(self, run: str) -> SocketClient:
        return SocketClient(FakeRun(self.folder, run))


def show(folder: Path) -> None:
    """Shows the run in this process's terminal."""
    from tui.start import run

    run(SocketEngine(folder), (Settings(), Places("", {})), open_run=RUN)


EMPTY = "from textual.app import App; App().run()"
HOME = """
import os, sys; sys.path.insert(0, {root!r})
os.environ["RANKDECK_HOME"] = {folder!r}
from rankdeck_command import main
main()
"""


# --- the terminal around it ------------------------------------------------------------------------------------------


class Terminal:
    """A process in a pty, and what it has written. No terminal is emulated: that would cost more than the app does."""

    def __init__(self, *arguments: str) -> None:
        self.began = time.perf_counter()
        self.child = pexpect.spawn(
            sys.executable,
            list(arguments),
            dimensions=(40, 120),
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )
        self.child.delaybeforesend = None  # pexpect waits 50 ms before it types
        self.bytes = 0

    def read(self, wait: float) -> bytes:
        """What it writes within `wait` seconds."""
        if not select.select([self.child.child_fd], [], [], wait)[0]:
            return b""
        data = os.read(self.child.child_fd, 1 << 16)
        self.bytes += len(data)
        return data

    def until(self, text: str, seconds: float = 30.0) -> None:
        """Reads until it has written a text."""
        end = time.monotonic() + seconds
        seen = b""
        while text.encode() not in seen:
            if time.monotonic() > end:
                raise SystemExit(f"{text!r} did not come within {seconds:g} s")
            seen = seen[-1000:] + self.read(0.05)

    def drain(self, seconds: float) -> None:
        """Reads for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def close(self) -> None:
        """Ends the process, which gets some time for it."""
        self.child.kill(signal.SIGHUP)
        end = time.monotonic() + 5
        while self.child.isalive():
            with contextlib.suppress(OSError):  # it has closed its terminal
                self.read(0.05)
            if time.monotonic() > end:
                self.child.kill(signal.SIGKILL)
        self.child.close()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_share(terminal: Terminal, seconds: float) -> dict[str, float]:
    """CPU share of one core, and what goes to the terminal."""
    terminal.drain(2.0)
    before, sent, began = cpu_seconds(terminal.child.pid), terminal.bytes, time.monotonic()
    terminal.drain(seconds)
    elapsed = time.monotonic() - began
    share = (cpu_seconds(terminal.child.pid) - before) / elapsed
    return {"cpu_percent": 100 * share, "kb_per_second": (terminal.bytes - sent) / elapsed / 1000}


def measure_keys(terminal: Terminal, count: int, ranks: int) -> list[float]:
    """Seconds from a key to the row of the table that has the cursor then."""
    found, most = [], min(10, ranks - 1)
    rank = 0
    for number in range(count):
        terminal.drain(0.05 + random.random() / 10)
        down = number % (2 * most) < most
        rank += 1 if down else -1
        began = time.perf_counter()
        terminal.child.send("j" if down else "k")
        terminal.until(f"▸{rank:>4}", seconds=5)
        found.append(time.perf_counter() - began)
    return found


def first_paint(code: str, sign: str) -> float:
    """Seconds from the start of a process to the frame that has a sign of it."""
    terminal = Terminal("-c", code)
    terminal.until(sign)
    elapsed = time.perf_counter() - terminal.began
    terminal.close()
    return elapsed


# --- figures ---------------------------------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every figure."""
    home = HOME.format(root=str(ROOT), folder=str(folder))
    starts: dict[str, list[float]] = {"empty": [], "home": []}
    for _ in range(STARTS):
        # An empty app's frame is blank, and begins where the cursor goes home.
        starts["empty"].append(first_paint(EMPTY, "\x1b[1;1H"))
        starts["home"].append(first_paint(home, "Profiles"))
    words = [
        sys.executable,
        __file__,
        "--supervise",
        "--folder",
        folder,
        "--ranks",
        arguments.ranks,
        "--lines",
        arguments.lines,
    ]
    supervisor = pexpect.popen_spawn.PopenSpawn([str(word) for word in words])
    try:
        while not (folder / "socket").exists():
            time.sleep(0.05)
        terminal = Terminal(__file__, "--show", "--folder", str(folder))
        terminal.until(f"{arguments.ranks}/{arguments.ranks} ranks")
        one = measure_share(terminal, arguments.seconds)
        keys = sorted(1000 * seconds for seconds in measure_keys(terminal, KEYS, arguments.ranks))
        terminal.child.send("a")
        terminal.until("all ")
        everything = measure_share(terminal, arguments.seconds)
        terminal.child.send("2")
        chart = measure_share(terminal, arguments.seconds)
        terminal.close()
    finally:
        supervisor.kill(9)
        supervisor.wait()
    medians = {kind: statistics.median(found) for kind, found in starts.items()}
    return {
        "ranks": arguments.ranks,
        "lines_per_second": arguments.ranks * arguments.lines,
        "log_of_one_rank": one,
        "log_of_all_ranks": everything,
        "chart": chart,
        "key_to_paint_ms": {
            "p50": statistics.median(keys),
            "p95": keys[math.ceil(0.95 * len(keys)) - 1],
            "max": keys[-1],
        },
        "first_paint_s": medians,
        "first_paint_ratio": medians["home"] / medians["empty"],
    }


def table(found: dict[str, Any]) -> str:
    """The figures for people, with what is aimed at."""
    keys = found["key_to_paint_ms"]
    rows = [("", "", "aim")]
    for name in ("log_of_one_rank", "log_of_all_ranks", "chart"):
        share = found[name]
        words = f"{share['cpu_percent']:5.1f} % of a core, {share['kb_per_second']:.0f} kB/s to the terminal"
        rows.append((f"CPU, {name.replace('_', ' ')}", words, "< 25 %"))
    rows.append(
        ("key to paint", f"p50 {keys['p50']:.0f}, p95 {keys['p95']:.0f}, max {keys['max']:.0f} ms", "p95 < 100 ms")
    )
    paint = found["first_paint_s"]
    words = f"{paint['home']:.3f} s, an empty app {paint['empty']:.3f} s: ratio {found['first_paint_ratio']:.2f}"
    rows.append(("first paint", words, "<= 1.5"))
    head = f"{found['ranks']} ranks, {found['lines_per_second']} lines/s in all"
    return "\n".join([head, *(f"{name:24} {value:60} {aim}" for name, value, aim in rows)])


def main() -> None:
    """Measures, or is one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of CPU")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--lines", type=int, default=50, help="a second, of each rank")
    parser.add_argument("--json", type=Path, help="also writes the figures there")
    parser.add_argument("--show", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.supervise:
        asyncio.run(supervise(arguments.folder, arguments.ranks, arguments.lines))
    elif arguments.show:
        show(arguments.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="rankdeck-ui-") as folder:
            found = measure(arguments, Path(folder))
        print(table(found))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
