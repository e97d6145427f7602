"""`rankdeck prometheus`: gives a Prometheus server the metrics of this user's runs, through the package prometheus-client."""

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from engine.client.jobs import runs_and_jobs
from engine.client.run import LocalRun
from engine.commands.loopback import is_loopback_host
from engine.commands.output import narrate
from engine.core.errors import CheckError, RankdeckError, UsageError
from engine.core.metrics.resources import RESOURCES
from engine.core.run.state import ENDED_WORDS, RankWord, RunWord
from engine.core.views.view import RankView, RunSummary, Snapshot
from engine.runs.paths import RunPaths, runs_folder
from engine.runs.record import place_elsewhere

TOLD_AFTER_END = 3600.0  # seconds for which the state of an ended run is still told
PATIENCE = 5.0  # seconds in which a supervisor must answer, and in which a client must send its request

_RUN_GAUGES = (
    ("launched_at", "launched_timestamp_seconds", "When the run was launched"),
    ("attempt", "attempt", "Number of the attempt; counts restarts of all ranks"),
    ("generation", "generation", "Number of the process group in the attempt; counts rejoins"),
    ("step", "step", "Last step"),
    ("steps", "steps", "Number of steps in all"),
)
"""A field of `RunView`, the name of its metric, and its description."""

_RANK_GAUGES = (
    ("step", "Last step of the rank"),
    ("stalled", "1 if the rank hangs"),
    ("cpu_ratio", "Processor time a second; 1 is one core"),
    ("memory_bytes", "Physical memory of the process"),
    ("read_bytes_per_second", "Bytes that the process reads"),
    ("written_bytes_per_second", "Bytes that the process writes"),
    ("gpu_utilization_ratio", "Time in which a kernel ran on the rank's GPU"),
    ("gpu_memory_bytes", "Memory in use on the rank's GPU"),
)


class Address(NamedTuple):
    """Where to listen: a loopback address, or `path` of a Unix socket."""

    host: str
    port: int
    path: str


def parse_address(text: str) -> Address:
    """Reads `PORT`, `HOST:PORT` or the path of a socket. Raises UsageError for other texts, and for a host that other machines can reach."""
    if "/" in text:
        return Address("", 0, text)
    host, _, number = text.rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host.strip("[]"))
    if not (number.isascii() and number.isdigit() and int(number) < 1 << 16):
        hint = "a port, 127.0.0.1:PORT, or a path with / for a socket"
        raise UsageError(f"--listen: {text!r} is no address", hint=hint)
    with contextlib.suppress(ValueError):
        if ip_address(host).is_loopback:
            return Address(host, int(number), "")
    hint = "listen on 127.0.0.1, and reach it from elsewhere by ssh -L or a proxy that asks for one"
    raise UsageError(f"--listen: {host} is not on the loopback network; the page has no password", hint=hint)


def serve(address: Address) -> None:
    """Answers requests until it is interrupted. Raises CheckError: prometheus-client is missing; UsageError: the address is taken."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError as error:
        hint = "pip install 'rankdeck[prometheus]'"
        raise CheckError(f"prometheus needs the package prometheus-client: {error}", hint=hint) from None
    registry = CollectorRegistry()
    registry.register(Runs())
    server: WSGIServer
    try:
        server = _local_server(address.path) if address.path else _Server((address.host, address.port), _Handler)
    except OSError as error:
        where = address.path or f"{address.host}:{address.port}"
        hint = "choose another with --listen"
        raise UsageError(f"--listen: {where} can't be used: {error.strerror}", hint=hint) from None
    answers = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if address.path or is_loopback_host(environ.get("HTTP_HOST", "")):
            return answers(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Use the address that `rankdeck prometheus` has printed.\n"]

    server.set_app(answer)
    with contextlib.suppress(KeyboardInterrupt):
        _serve_requests(server, address)


def _serve_requests(server: WSGIServer, address: Address) -> None:
    try:
        where = address.path or f"http://{address.host}:{server.server_address[1]}/metrics"
        narrate(f"metrics of your runs: {where} (Ctrl-C ends it)")
        server.serve_forever()
    finally:
        server.server_close()
        if address.path:
            Path(address.path).unlink(missing_ok=True)


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the base class
        """Prints nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:  # the method of the base class asks for the name of the host, which may take long
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or sent nothing, is no news."""


class _LocalServer(_Server):
    address_family = socket.AF_UNIX
    allow_reuse_address = False

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Gives the client a name, which wsgiref wants."""
        return self.socket.accept()[0], ("client", 0)


def _local_server(path: str) -> WSGIServer:
    """Listens on a socket that only this user can connect to. A socket on which no process listens any more is replaced."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
            os.unlink(path)
    before = os.umask(0o177)
    try:
        return _LocalServer(path, _Handler)  # type: ignore[arg-type]
    finally:
        os.umask(before)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return False
        return True


class Runs:
    """A collector for prometheus-client: asks the supervisors of all live runs at each request."""

    def describe(self) -> list[Any]:
        """Nothing: names are known at a request."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        now = time.time()
        found = [one for one in runs_and_jobs() if one.ended_at is None or now - one.ended_at < TOLD_AFTER_END]
        here = [one for one in found if one.reachable and not one.elsewhere and one.state not in ENDED_WORDS]
        asked = [RunPaths(runs_folder() / one.run) for one in here]
        # A supervisor in a job of Slurm would be asked through srun, too slow for this.
        yield from families(found, asyncio.run(_snapshots([paths for paths in asked if not place_elsewhere(paths)])))


async def _snapshots(asked: Sequence[RunPaths]) -> list[Snapshot]:
    """The snapshots of the runs that answer in time."""

    async def snapshot(paths: RunPaths) -> Snapshot | None:
        with contextlib.suppress(RankdeckError, OSError, TimeoutError):
            return await asyncio.wait_for(LocalRun(paths).snapshot(), PATIENCE)
        return None

    return [answer for answer in await asyncio.gather(*map(snapshot, asked)) if answer is not None]


def families(summaries: Sequence[RunSummary], snapshots: Sequence[Snapshot]) -> Iterator[Any]:
    """The metrics of runs, as prometheus-client writes them. `snapshots`: those of runs that answered; they have the other metrics."""
    from prometheus_client.core import GaugeMetricFamily as Gauge
    from prometheus_client.core import StateSetMetricFamily

    state = StateSetMetricFamily("rankdeck_run_state", "State of the run", labels=["run", "name", "backend"])
    for one in summaries:
        state.add_metric([one.run, one.name, one.backend], {word: word == one.state for word in get_args(RunWord)})
    yield state
    run = {field: Gauge(f"rankdeck_run_{name}", text, labels=["run"]) for field, name, text in _RUN_GAUGES}
    ranks = Gauge("rankdeck_run_ranks", "Ranks in each state", labels=["run", "state"])
    rank = {name: Gauge(f"rankdeck_rank_{name}", text, labels=["run", "rank", "node"]) for name, text in _RANK_GAUGES}
    rate = Gauge("rankdeck_rank_throughput", "Units of training a second", labels=["run", "rank", "node", "unit"])
    metric = Gauge("rankdeck_rank_metric", "Newest value of a metric", labels=["run", "rank", "node", "metric"])
    for snapshot in snapshots:
        view = snapshot.run
        for field, gauge in run.items():
            if (value := getattr(view, field)) is not None:
                gauge.add_metric([view.run], value)
        for word in get_args(RankWord):
            ranks.add_metric([view.run, word], sum(row.state == word for row in snapshot.ranks))
        nodes = {row.rank: row.node for row in snapshot.ranks}
        for row in snapshot.ranks:
            labels = [view.run, str(row.rank), row.node]
            for (name, _), value in zip(_RANK_GAUGES, _values(row), strict=True):
                if value is not None:
                    rank[name].add_metric(labels, value)
            if row.throughput is not None:
                rate.add_metric([*labels, row.unit], row.throughput)
        for dump in snapshot.series:
            if dump.recent and dump.rank in nodes and dump.key not in ("throughput", *RESOURCES):
                newest = dump.recent[-1][2]
                labels = [view.run, str(dump.rank), nodes[dump.rank], dump.key]
                metric.add_metric(labels, float("nan") if newest is None else newest)
    yield from (*run.values(), ranks, *rank.values(), rate, metric)


def _values(row: RankView) -> tuple[float | None, ...]:
    """The values of `_RANK_GAUGES`."""
    used, gpu = row.process, row.gpu
    return (
        row.step,
        row.health == "stalled",
        used.cpu / 100 if used else None,
        used.memory if used else None,
        used.read if used else None,
        used.written if used else None,
        gpu.utilisation / 100 if gpu and gpu.utilisation is not None else None,
        gpu.memory if gpu else None,
    )
