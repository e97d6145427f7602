"""How a command reaches the supervisor of a run, where another process is starting one."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from engine.client import run as client
from engine.core.errors import SupervisorError
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from engine.runs.record import Submitted, Whereabouts


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tried; nothing listens before the tenth connection."""
    tried: list[str] = []

    async def connect(paths: RunPaths) -> str:
        tried.append("connect")
        if tried.count("connect") < 10:
            raise ConnectionError
        return "connected"

    def start(paths: RunPaths) -> None:
        tried.append("start")
        raise SupervisorError("it did not start")

    monkeypatch.setattr("engine.client.connection.Connection.open", connect)
    monkeypatch.setattr(client, "start_supervisor", start)
    running = SimpleNamespace(run=SimpleNamespace(state="running"))
    monkeypatch.setattr(client, "_stored_snapshot", lambda paths: running)
    return tried


def test_a_command_waits_for_a_supervisor_that_a_guard_has_started(tmp_path: Path, tries: list[str]) -> None:
    paths = RunPaths(tmp_path)
    lock = take_lock(paths)  # as the one that starts, until it listens
    assert asyncio.run(client.LocalRun(paths)._connect()) is not None
    assert "start" not in tries
    os.close(lock)


def test_a_command_gives_up_where_no_supervisor_can_be_started(tmp_path: Path, tries: list[str]) -> None:
    with pytest.raises(SupervisorError, match="does not answer"):
        asyncio.run(client.LocalRun(RunPaths(tmp_path))._connect())
    assert tries == ["connect", "start"] * client.MAX_FAILURES


def test_a_supervisor_that_begins_in_a_job_is_reached_there_by_a_command_that_looked_before(
    tmp_path: Path, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, reached = RunPaths(tmp_path), []

    def begins(_: RunPaths) -> SimpleNamespace:
        paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0, by_user=True)))
        paths.supervisor.write_bytes(msgspec.json.encode(Whereabouts(host="far", pid=1, version="0", socket="/s")))
        return SimpleNamespace(run=SimpleNamespace(state="running"))

    async def connect(_: object, submitted: Submitted, *, patient: bool) -> None:
        reached.append(submitted.job)

    monkeypatch.setattr(client, "_stored_snapshot", begins)
    monkeypatch.setattr(client.LocalRun, "_connect_to_job", connect)
    asyncio.run(client.LocalRun(paths)._connect())
    assert reached == ["17"]
