"""What a Prometheus server is told, and on which addresses."""

import http.client
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from engine.commands import prometheus
from engine.commands.prometheus import Address, families, parse_address
from engine.core.errors import CheckError, UsageError
from engine.core.metrics.resources import ProcessUse
from engine.runs.listing import summarise
from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot
from tests.ended_run import ended_run
from tests.support import PATIENCE, from_table


@from_table
def test_ports_and_sockets_are_addresses(text: str, address: list[Any]):
    assert parse_address(text) == tuple(address)


@pytest.mark.parametrize("text", ["", "metrics", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:\u0663"])
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(UsageError, match="is no address"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:9417", "192.168.1.2:80", "[::]:80", "login1:80"])
def test_addresses_that_others_reach_are_refused(text: str):
    with pytest.raises(UsageError, match="loopback"):
        parse_address(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    ended_run(tmp_path / "runs")
    return tmp_path


def test_runs_ranks_and_metrics_are_told_and_hostile_names_are_quoted(home: Path):
    paths = RunPaths(home / "runs" / "smoke-sq4f")
    snapshot, summary = stored_snapshot(paths), summarise(paths)
    assert summary is not None
    used = ProcessUse(cpu=250, memory=1 << 20, read=10, written=None)
    rows = [msgspec.structs.replace(row, node='a"b\n', process=used, health="stalled") for row in snapshot.ranks]
    snapshot = msgspec.structs.replace(snapshot, ranks=tuple(rows))

    told = list(families([summary], [snapshot]))

    class Told(Collector):
        def collect(self) -> list[Metric]:
            return told

    registry = CollectorRegistry()
    registry.register(Told())
    text = generate_latest(registry).decode()
    run, node = summary.run, 'node="a\\"b\\n"'
    for line in (
        f'rankdeck_run_state{{backend="gloo",name="smoke",rankdeck_run_state="succeeded",run="{run}"}} 1.0',
        f'rankdeck_run_ranks{{run="{run}",state="exited"}} {float(len(rows))}',
        f'rankdeck_rank_cpu_ratio{{{node},rank="0",run="{run}"}} 2.5',
        f'rankdeck_rank_stalled{{{node},rank="1",run="{run}"}} 1.0',
    ):
        assert line in text.splitlines()
    assert f'rankdeck_rank_metric{{metric="loss",{node},rank="0",run="{run}"}}' in text
    assert "written_bytes_per_second{" not in text


class Local(http.client.HTTPConnection):
    """A connection to a socket with a path."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


@from_table
def test_a_page_of_a_stranger_that_is_resolved_to_this_machine_reads_nothing(
    host: str, status: int, home: Path, monkeypatch: pytest.MonkeyPatch
):
    servers: list[Any] = []
    monkeypatch.setattr(prometheus, "_serve_requests", lambda server, address: servers.append(server))
    prometheus.serve(Address("127.0.0.1", 0, ""))
    (server,) = servers
    statuses = []
    body = server.application(
        {"HTTP_HOST": host, "REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"}, lambda line, _: statuses.append(line)
    )
    server.server_close()
    assert int(statuses[0].split()[0]) == status
    assert (b"rankdeck_run" in b"".join(body)) == (status == 200)


def test_a_socket_is_private_serves_and_replaces_one_that_nobody_listens_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    path = home / "metrics"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    servers = []
    monkeypatch.setattr(prometheus, "_serve_requests", lambda server, address: servers.append(server))
    prometheus.serve(Address("", 0, str(path)))
    (server,) = servers
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(UsageError, match="can't be used"):
            prometheus.serve(Address("", 0, str(path)))
        connection = Local(path)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, answer.headers.get_content_type()) == (200, "text/plain")
        answer.read()
        connection.close()
    finally:
        server.shutdown()
        server.server_close()
        serving.join(PATIENCE)


def test_a_port_that_is_taken_is_named(home: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="can't be used"):
        prometheus.serve(Address("127.0.0.1", taken.getsockname()[1], ""))


def test_the_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(CheckError, match=r"rankdeck\[prometheus\]"):
        prometheus.serve(Address("127.0.0.1", 0, ""))
