"""A process of another user at the other end of a socket: of mpirun's processes, and of a standby."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import standby
from engine.node import mpi_proxy
from engine.runs.paths import RunPaths
from engine.runs.standbys import StandbyNote
from engine.supervisor.standby import lingering
from engine.supervisor.standby.lingering import Callers
from tests.support import PATIENCE, listener_of_another_user

pytestmark = pytest.mark.usefixtures("needs_root")

CALLER = """
import os, socket, sys
os.setuid(65534)
wire = socket.socket(socket.AF_UNIX)
wire.connect(sys.argv[1])
try:
    wire.sendall(b'"/tmp/run"\\n')
    wire.shutdown(socket.SHUT_WR)
    print(wire.recv(10))
except ConnectionError:  # it has hung up with the words unread
    print(b"")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def foreign(folder: Path) -> Iterator[Path]:
    """A socket at which another user listens."""
    with listener_of_another_user(folder / "socket of another user"):
        yield folder / "socket of another user"


def test_a_process_of_mpirun_does_not_talk_to_an_agent_of_another_user(folder: Path, foreign: Path) -> None:
    (folder / "socket").write_text(str(foreign))
    with pytest.raises(PermissionError, match=f"{foreign} belongs to another user"):
        mpi_proxy.connect(str(folder))


def test_a_launch_does_not_talk_to_a_standby_of_another_user(foreign: Path) -> None:
    assert standby._connect(str(foreign)) is None


def test_a_supervisor_does_not_count_on_a_standby_of_another_user(foreign: Path) -> None:
    assert not lingering._refresh(StandbyNote(pid=1, start=1, python="python", key="key", socket=str(foreign)))


def test_a_standby_takes_no_run_from_another_user(folder: Path) -> None:
    path = folder / "standby"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen()

    async def main() -> tuple[bytes, bool]:
        callers = Callers(RunPaths(folder / "run"), PATIENCE, os.dup(listener.fileno()))
        waiting = asyncio.ensure_future(callers.next_run())
        command = [sys.executable, "-I", "-S", "-c", CALLER, str(path)]
        said = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=PATIENCE)
        has_taken = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        callers.hang_up(taken=False)
        callers._listener.close()
        return said.stdout, has_taken

    with listener:
        assert asyncio.run(main()) == (b"b''\n", False)
