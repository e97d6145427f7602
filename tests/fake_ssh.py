"""The fixture `fake_ssh`: an ssh on the PATH that needs neither root nor network.

A conftest imports it together with `fake_ssh_hosts`, which fails a test that leaves a process on a host.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import GRACE
from tests.support import Process, complete_lines, kill_what_stays, processes_with

BIN = Path(__file__).with_name("bin")


class Call(NamedTuple):
    """One call of ssh."""

    argv: list[str]  # the words after `ssh`
    host: str
    command: str  # what the shell over there gets


class FakeSsh:
    """What the fake ssh was asked, and what its hosts have. `root`: the folder for all hosts. Its path is short: sockets are made in there, whose
    paths have 107 bytes at most."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "calls.jsonl"

    def calls(self, host: str = "") -> list[Call]:
        """Every call so far, of all hosts or of one."""
        calls = [Call(**json.loads(line)) for line in complete_lines(self.log).splitlines()]
        return [call for call in calls if host in ("", call.host)]

    def home(self, host: str) -> Path:
        """The HOME of a host."""
        return self.root / host / "home"

    def tmp(self, host: str) -> Path:
        """The TMPDIR of a host."""
        return self.root / host / "tmp"

    def processes(self, host: str = "") -> list[Process]:
        """Every process that goes on on all hosts, or on one."""
        hosts = [host] if host else [path.name for path in sorted(self.root.glob("*/"))]
        return [process for name in hosts for process in processes_with("FAKE_SSH_NODE", str(self.root / name))]

    def remove(self, grace: float = GRACE) -> None:
        """Removes all hosts.

        Args:
            grace: the seconds that their processes have to end by themselves.

        Raises:
            AssertionError: they had not; they are killed then.
        """
        left = kill_what_stays(self.processes, grace)
        shutil.rmtree(self.root, ignore_errors=True)
        assert not left, f"processes were left behind (and are killed now): {left}"


@pytest.fixture(autouse=True)
def fake_ssh_hosts() -> Iterator[list[FakeSsh]]:
    """Where `fake_ssh` enters itself, to be cleaned up.

    Being autouse this is the first to be set up, and so the last to be torn down: `home` has ended every run by then.
    """
    made: list[FakeSsh] = []
    yield made
    for fake in made:
        fake.remove()


@pytest.fixture
def fake_ssh(monkeypatch: pytest.MonkeyPatch, fake_ssh_hosts: list[FakeSsh]) -> FakeSsh:
    """Puts the fake ssh in front of the PATH, for all that the test starts."""
    fake = FakeSsh(Path(tempfile.mkdtemp(prefix="rd")))
    fake_ssh_hosts.append(fake)
    monkeypatch.setenv("FAKE_SSH_ROOT", str(fake.root))
    monkeypatch.setenv("FAKE_SSH_LOG", str(fake.log))
    monkeypatch.setenv("FAKE_SSH_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    return fake
