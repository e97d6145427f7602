"""A process of another user at the other end of a socket: of mpirun's processes, and of a template."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.linux.processes import reap
from engine.node.agent.ranks.templates import Template
from engine.node.programs import mpi_proxy
from tests.support import listener_of_another_user

pytestmark = pytest.mark.usefixtures("needs_root")


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


def test_an_agent_asks_no_template_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with listener_of_another_user(folder / "template", socket.SOCK_SEQPACKET):
        message = {"user_template": str(folder / "template"), "library": "library", "linger": 1.0}
        template = Template(["true"], {}, message, [], "log")
    assert template.pid, "it is a process of its own"
    template.wire.close()
    reap(template.pid)
