"""What a run of thousands of ranks costs its supervisor and the app, on nodes that are simulated.

    python benchmarks/scale.py [--nodes 16 64 128 512] [--ranks 8] [--seconds 30] [--without-app] [--json FILE]

The supervisor is the real one in a process of its own; its launcher alone is another. What that starts is no ssh but a `cat`
whose pipes belong to one process, which speaks the agent's protocol for all nodes and starts nothing. Every rank reports one
metric a second, all at the same time, as ranks do that train together. Latency is the time from an event on a node to the
update that holds it, as a subscriber of the run's socket has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from engine import __version__  # noqa: E402
from engine.client.connection import Connection  # noqa: E402
from engine.core.plan.plan import Reach  # noqa: E402
from engine.core.plan.profile import Launch, Layout, Profile, Recipe  # noqa: E402
from engine.core.views.view import PROTOCOL, RunView, Snapshot, Update  # noqa: E402
from engine.core.wire import front_end as msg  # noqa: E402
from engine.gate import LAUNCHED  # noqa: E402
from engine.launchers import LAUNCHERS  # noqa: E402
from engine.linux.files import replace_file  # noqa: E402
from engine.node.agent.loop import POLL_INTERVAL  # noqa: E402
from engine.node.agent.wire import SYNC, FrameBuffer, encode_frame  # noqa: E402
from engine.planning.make import make_plan  # noqa: E402
from engine.runs.paths import RunPaths  # noqa: E402
from engine.runs.record import read_plan  # noqa: E402

RUN = "scale-0001"
FAILURES = 50
FAILURE_PERIOD = 0.05
KEYS = 50
OPEN_FILES = 1024  # what a process may open where nobody has changed the limit: the supervisor has to cope with that

CONNECT = '(echo "$$ $1 $2" >"$0/door"); exec cat "$0/$1"'
"""Tells the process of the nodes whose pipes these are; then waits for it to end, without a word. The subshell is there since a
shell's own standard output is another for as long as it redirects an `echo`."""

LAST_WORDS = b'Traceback (most recent call last):\n  File "train.py", line 40, in <module>\nValueError: loss is nan\n'


# --- the process that is all nodes -----------------------------------------------------------------------------------


class SimulatedNode:
    """What one agent knows, and what it answers.

    Args:
        name: of the node.
        folder: where the connectors' pipes are.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self.attempt = -1
        self.alive: dict[int, int] = {}
        """Ranks whose process exists, with their generation."""
        self._sent: dict[int, list[int]] = {}
        """Bytes of stdout, stderr and metrics of each rank of this attempt."""
        self._wire: asyncio.WriteTransport | None = None
        self._relays = False
        self._numbers = ""
        """What a rank has reported last."""

    async def serve(self, pid: int, size: int) -> None:
        """Is the agent that a connector has booted, until it is told to close or the supervisor is gone.

        Args:
            pid: the connector's, whose standard input and output are the link.
            size: bytes of the agent's program, which come first.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        wire_in, wire_out = open_pipe(pid, 0, os.O_RDONLY), open_pipe(pid, 1, os.O_WRONLY)
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), wire_in)
        wire, _ = await loop.connect_write_pipe(asyncio.Protocol, wire_out)
        try:
            await reader.readexactly(size)
            self._wire = wire
            wire.write(SYNC)
            frames = FrameBuffer()
            while data := await reader.read(1 << 16):
                for message in frames.feed(data):
                    if message["type"] == "close":
                        return
                    self._answer(message)
        finally:
            self._wire, self._relays = None, False
            wire.close()
            source.close()
            end_connector(self._folder / self.name)

    def _send(self, data: bytes = b"", **message: Any) -> None:
        if self._wire is not None:
            self._wire.write(encode_frame(message, data))

    def _answer(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "hello":
                ranks = [
                    {"attempt": self.attempt, "rank": rank, "pid": 1000 + rank, "status": None, "reason": "", "generation": generation}
                    for rank, generation in self.alive.items()
                ]  # fmt: skip
                self._send(type="hello", pid=os.getpid(), ranks=ranks, library=True, folder="/node", shared=False, state="/state")  # fmt: skip
            case "ping":
                self._send(type="pong")
            case "relay":
                self._relays = True
            case "open_door":
                self._send(type="door", number=message["number"], port=1, addresses=["10.0.0.1", "10.1.0.1"])
            case "knock":
                reached = [[address, "eth0"] for address in message["addresses"]]
                self._send(type="knocked", number=message["number"], reached=reached)
            case "name_interface":
                self._send(type="interface", number=message["number"], name="eth0")
            case "open_store":
                self._send(type="store", attempt=message["attempt"], host=message["host"], port=2)
            case "spawn":
                self._spawn(message)
            case "stop":
                for rank in list(self.alive):
                    self.end(rank, -15)
            case "clear":
                sizes = [[rank, *sizes] for rank, sizes in self._sent.items()]
                self._send(type="cleared", attempt=message["attempt"], abandoned=[], sizes=sizes)

    def _spawn(self, message: dict[str, Any]) -> None:
        if message["attempt"] > self.attempt:
            self.attempt, self.alive, self._sent = message["attempt"], {}, {}
        for one in message["ranks"]:
            rank, generation = one["rank"], one["generation"]
            self.alive[rank], self._sent[rank] = generation, [0, 0, 0]
            self._send(type="spawned", attempt=self.attempt, rank=rank, pid=1000 + rank, generation=generation)

    def report(self, step: int) -> None:
        """Every rank has finished a step."""
        for rank in self.alive:
            self._numbers = json.dumps({"t": time.time(), "step": step, "loss": 2 + random.random() / step}) + "\n"
            self._relay(rank, 2, self._numbers.encode())

    def end(self, rank: int, status: int) -> None:
        """A rank has ended."""
        generation, errors = self.alive.pop(rank), LAST_WORDS if status > 0 else b""
        self._relay(rank, 1, errors)
        self._send(
            type="ended",
            attempt=self.attempt,
            rank=rank,
            status=status,
            reason="",
            generation=generation,
            errors=errors.decode(),
            numbers=self._numbers,
        )

    def _relay(self, rank: int, stream: int, data: bytes) -> None:
        if self._relays and data:
            offset = self._sent[rank][stream]
            self._send(data, type="data", attempt=self.attempt, rank=rank, stream=stream, offset=offset)
            self._sent[rank][stream] += len(data)


async def simulate(folder: Path) -> None:
    """Is every node of a plan until standard input ends. A line there is the number of a rank that fails now; the answer is when."""
    plan = read_plan(RunPaths(folder))
    pipes = folder / "pipes"
    pipes.mkdir()
    for name in ("door", *(node.name for node in plan.nodes)):
        os.mkfifo(pipes / name)
    nodes = {node.name: SimulatedNode(node.name, pipes) for node in plan.nodes}
    door, orders = asyncio.StreamReader(), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    door_file = os.fdopen(os.open(pipes / "door", os.O_RDWR | os.O_NONBLOCK), "rb", 0)
    for reader, file in ((door, door_file), (orders, sys.stdin)):
        await loop.connect_read_pipe(lambda reader=reader: asyncio.StreamReaderProtocol(reader), file)  # type: ignore[misc]
    async with asyncio.TaskGroup() as tasks:
        chores = [tasks.create_task(_welcome(door, nodes, tasks)), tasks.create_task(_train(list(nodes.values())))]
        print("ready", flush=True)
        while line := await orders.readline():
            rank = int(line)
            print(time.time(), flush=True)
            nodes[plan.places[rank].node].end(rank, 1)
        for chore in chores:
            chore.cancel()


async def _welcome(door: asyncio.StreamReader, nodes: dict[str, SimulatedNode], tasks: asyncio.TaskGroup) -> None:
    while line := await door.readline():
        pid, name, size = line.decode().split()
        tasks.create_task(nodes[name].serve(int(pid), int(size)))


async def _train(nodes: list[SimulatedNode]) -> None:
    """A step a second. The agents look at what ranks wrote within the 50 ms that follow, each at a time of its own."""
    began = time.monotonic()
    for step in range(1, 1_000_000):
        await asyncio.sleep(max(0.0, began + step - time.monotonic()))
        for part in range(5):
            for node in nodes[part::5]:
                node.report(step)
            await asyncio.sleep(POLL_INTERVAL / 5)


def open_pipe(pid: int, number: int, flags: int) -> IO[bytes]:
    """Standard input or output of another process, which is a pipe."""
    return os.fdopen(os.open(f"/proc/{pid}/fd/{number}", flags), "wb" if flags else "rb", 0)


def end_connector(pipe: Path) -> None:
    """Lets the connector of a node go, if there is one."""
    with contextlib.suppress(OSError):
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


# --- the supervisor's process ----------------------------------------------------------------------------------------


class SimulatedLauncher(NamedTuple):
    """Reaches the process above instead of a machine."""

    pipes: Path

    def argv(self, node: str, command: Sequence[str], reach: Reach) -> list[str]:
        """The connector of a node. The last word of the command is the size of the program that it takes."""
        return ["sh", "-c", CONNECT, str(self.pipes), node, command[-1]]


def supervise(folder: Path) -> None:
    """The supervisor of the run, as `rankdeck supervise` is, but for how it reaches nodes."""
    from engine.supervisor import main

    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    LAUNCHERS["ssh"] = SimulatedLauncher(folder / "pipes").argv
    asyncio.run(main.supervise(RunPaths(folder), restart_by=None))


# --- a subscriber ----------------------------------------------------------------------------------------------------


class Subscriber:
    """A front end, and what is measured of what it gets."""

    def __init__(self) -> None:
        self.run: RunView | None = None
        self.failed: dict[int, float] = {}
        """When it was heard of each rank that failed."""
        self.sizes: list[int] = []
        self.latencies: list[float] = []
        self._ended = False
        self._news = asyncio.Event()

    async def watch(self, paths: RunPaths) -> None:
        """Reads until the run has ended."""
        replies: msgspec.json.Decoder[msg.Reply] = msgspec.json.Decoder(msg.Reply)
        reader, writer = await asyncio.open_unix_connection(paths.socket, limit=1 << 30)
        for request in (msg.Hello(protocol=PROTOCOL, version=__version__), msg.Subscribe()):
            writer.write(msgspec.json.encode(request) + b"\n")
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                now = time.time()
                message = replies.decode(line)
                if isinstance(message, Snapshot | Update):
                    self.sizes.append(len(line))
                    self._take(message, now)
        finally:
            writer.close()
            self._ended = True
            self._news.set()

    def _take(self, message: Snapshot | Update, now: float) -> None:
        self.run = message.run or self.run
        for view in message.ranks:
            if view.state == "failed":
                self.failed.setdefault(view.rank, now)
        if isinstance(message, Update):
            self.latencies += [now - point.at for point in message.points]
        self._news.set()

    async def wait_for(self, condition: Callable[[RunView], bool], seconds: float = 300.0) -> None:
        """Returns once the run is as wanted."""
        async with asyncio.timeout(seconds):
            while self.run is None or not condition(self.run):
                if self._ended:
                    raise SystemExit(f"the run has ended{f': {self.run.doing[:300]}' if self.run else ''}")
                self._news.clear()
                await self._news.wait()


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95 and the longest, in ms."""
    found = sorted(1000 * one for one in seconds)
    places = {"p50": len(found) // 2, "p95": math.ceil(0.95 * len(found)) - 1, "max": len(found) - 1}
    return {name: found[place] for name, place in places.items()}


# --- figures ---------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int, field: str = "VmRSS") -> float:
    """MB of memory that a process has, or (`VmHWM`) had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1000


async def ask(paths: RunPaths, request: msg.Request) -> None:
    """Asks the supervisor for something, and waits for its answer."""
    connection = await Connection.open(paths)
    connection.write(request)
    await connection.read()
    connection.close()


def start_process(*words: str, folder: Path) -> subprocess.Popen[str]:
    """One of the processes of a measurement, which says `ready`."""
    with (folder / f"{words[0].strip('-')}.log").open("wb") as log:
        argv = [sys.executable, __file__, *words, "--folder", str(folder)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    if (said := process.stdout.readline()) != "ready\n":
        raise SystemExit(f"{argv}: {said}{(folder / log.name).read_text()}")
    return process


def make_run(home: Path, nodes: int, ranks: int) -> RunPaths:
    """The folder of a run with a plan, as a launch makes it."""
    profile = Profile(
        schema=1,
        name="scale",
        layout=Layout(nodes=f"node[1-{nodes}]:{ranks}", transport="ssh"),
        recipe=Recipe(name="gpt"),
        launch=Launch(warm=False),
    )
    paths = RunPaths(home / "runs" / RUN)
    paths.folder.mkdir(parents=True)
    replace_file(paths.plan, msgspec.json.encode(make_plan(profile, LAUNCHED, checked=False)))
    return paths


async def measure(nodes: int, arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Every figure of one size."""
    paths = make_run(home, nodes, arguments.ranks)
    world = nodes * arguments.ranks
    agents = start_process("--simulate", folder=paths.folder)
    began = time.monotonic()
    supervisor = start_process("--supervise", folder=paths.folder)
    pid = supervisor.pid
    try:
        found: dict[str, Any] = {"nodes": nodes, "ranks": world}
        subscriber = Subscriber()
        watching = asyncio.create_task(subscriber.watch(paths))
        await subscriber.wait_for(lambda run: run.state == "running" and run.alive == world)
        found["start"] = {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds(pid)}
        await asyncio.sleep(3)
        found["steady"] = await steady(subscriber, pid, arguments.seconds)
        if not arguments.without_app:
            watching.cancel()
            found["app"] = await asyncio.to_thread(measure_app, world, arguments.seconds / 3)
            subscriber = Subscriber()
            watching = asyncio.create_task(subscriber.watch(paths))
            await subscriber.wait_for(lambda run: True)
            await asyncio.sleep(3)
        found["failure_ms"] = await fail(agents, subscriber, world)
        found["snapshot"] = await take_snapshot(paths)
        before, asked = cpu_seconds(pid), time.monotonic()
        await ask(paths, msg.Restart(by="bench"))
        await subscriber.wait_for(lambda run: run.attempt == 1 and run.alive == world)
        found["restart"] = {"seconds": time.monotonic() - asked, "cpu_seconds": cpu_seconds(pid) - before}
        await asyncio.sleep(2)
        found["peak_mb"] = memory(pid, "VmHWM")
        asked = time.monotonic()
        await ask(paths, msg.Stop(by="bench"))
        await asyncio.to_thread(supervisor.wait)
        found["stop"] = {"seconds": time.monotonic() - asked}
        await watching
        return found
    finally:
        for process in (supervisor, agents):
            process.kill()
            process.communicate()
        for pipe in (paths.folder / "pipes").iterdir():
            end_connector(pipe)


async def steady(subscriber: Subscriber, pid: int, seconds: float) -> dict[str, Any]:
    """What a run costs in which nothing happens but training."""
    subscriber.sizes, subscriber.latencies = [], []
    before, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - began
    sizes = subscriber.sizes
    return {
        "cpu_percent": 100 * (cpu_seconds(pid) - before) / elapsed,
        "rss_mb": memory(pid),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "updates_per_second": len(sizes) / elapsed,
        "update_kb": sum(sizes) / len(sizes) / 1000,
        "mb_per_second": sum(sizes) / elapsed / 1e6,
        "points": len(subscriber.latencies),
        "latency_ms": percentiles(subscriber.latencies),
    }


async def take_snapshot(paths: RunPaths) -> dict[str, float]:
    """What a front end gets first, all curves so far: its size, and the time until it is read."""
    late, began = Subscriber(), time.monotonic()
    watching = asyncio.create_task(late.watch(paths))
    await late.wait_for(lambda run: True)
    watching.cancel()
    return {"mb": late.sizes[0] / 1e6, "seconds": time.monotonic() - began}


async def fail(agents: subprocess.Popen[str], subscriber: Subscriber, world: int) -> dict[str, float]:
    """Lets ranks fail, one after the other; the others go on."""
    assert agents.stdin is not None
    assert agents.stdout is not None
    ended = {}
    for rank in random.sample(range(world), min(FAILURES, world // 2)):
        agents.stdin.write(f"{rank}\n")
        agents.stdin.flush()
        ended[rank] = float(await asyncio.to_thread(agents.stdout.readline))
        await asyncio.sleep(FAILURE_PERIOD)
    await subscriber.wait_for(lambda run: len(subscriber.failed) == len(ended))
    return percentiles([subscriber.failed[rank] - at for rank, at in ended.items()])


def measure_app(world: int, seconds: float) -> dict[str, Any]:
    """What the app costs on the run, and how soon it answers a key."""
    from ui import Terminal, measure_keys, measure_share  # not in the supervisor's process, which does not know the app

    began = time.monotonic()
    terminal = Terminal(str(ROOT / "rankdeck_command.py"), "attach", RUN)
    try:
        terminal.until(f"{world}/{world} ranks", seconds=120)
        shown = time.monotonic() - began
        share = measure_share(terminal, seconds)
        keys = percentiles(measure_keys(terminal, KEYS, world))
        return {"shown_seconds": shown, **share, "key_to_paint_ms": keys, "rss_mb": memory(terminal.child.pid)}
    finally:
        terminal.close()


def table(sizes: list[dict[str, Any]]) -> str:
    """The figures for people."""

    def milliseconds(found: dict[str, float]) -> str:
        return f"{found['p50']:.0f} / {found['p95']:.0f} ms"

    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("ranks", lambda one: f"{one['ranks']}"),
        ("start to all running", lambda one: f"{one['start']['seconds']:.1f} s"),
        ("  CPU of it", lambda one: f"{one['start']['cpu_seconds']:.1f} s"),
        ("steady: CPU", lambda one: f"{one['steady']['cpu_percent']:.0f} %"),
        ("  memory", lambda one: f"{one['steady']['rss_mb']:.0f} MB"),
        ("  latency p50 / p95", lambda one: milliseconds(one["steady"]["latency_ms"])),
        (
            "  updates",
            lambda one: f"{one['steady']['updates_per_second']:.1f}/s of {one['steady']['update_kb']:.0f} kB",
        ),
        ("failure p50 / p95", lambda one: milliseconds(one["failure_ms"])),
        ("first snapshot", lambda one: f"{one['snapshot']['mb']:.1f} MB in {one['snapshot']['seconds']:.1f} s"),
        ("restart of all", lambda one: f"{one['restart']['seconds']:.1f} s"),
        ("  CPU of it", lambda one: f"{one['restart']['cpu_seconds']:.1f} s"),
        ("stop", lambda one: f"{one['stop']['seconds']:.1f} s"),
        ("most memory", lambda one: f"{one['peak_mb']:.0f} MB"),
    ]
    if "app" in sizes[0]:
        rows += [
            ("app: until shown", lambda one: f"{one['app']['shown_seconds']:.1f} s"),
            ("  CPU", lambda one: f"{one['app']['cpu_percent']:.0f} %"),
            ("  memory", lambda one: f"{one['app']['rss_mb']:.0f} MB"),
            ("  key to paint p50 / p95", lambda one: milliseconds(one["app"]["key_to_paint_ms"])),
        ]
    lines = ["".join(["nodes".ljust(25), *(f"{one['nodes']:>20}" for one in sizes)])]
    lines += ["".join([name.ljust(25), *(f"{value(one):>20}" for one in sizes)]) for name, value in rows]
    return "\n".join(lines)


def main() -> None:
    """Measures, or is one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 128, 512])
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the steady state")
    parser.add_argument("--without-app", action="store_true")
    parser.add_argument("--json", type=Path, help="also writes the figures there")
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.simulate:
        asyncio.run(simulate(arguments.folder))
        return
    if arguments.supervise:
        supervise(arguments.folder)
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    found = []
    for nodes in arguments.nodes:
        home = Path(tempfile.mkdtemp(prefix="rd"))  # a socket's path has 107 bytes at most
        os.environ.update(RANKDECK_HOME=str(home), XDG_RUNTIME_DIR=str(home))
        try:
            found.append(asyncio.run(measure(nodes, arguments, home)))
        finally:
            shutil.rmtree(home, ignore_errors=True)
        print(f"  {nodes} nodes: {json.dumps(found[-1])}", file=sys.stderr)
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
