"""The fixture `fake_pbs`: PBS's commands on the PATH, and nodes that are folders of this machine. `tests/bin/pbs.py` says what they do."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GRACE
from tests.fake_ssh import BIN
from tests.support import Process, kill_what_stays, processes_with

COMMANDS = ("pbs_tmrsh", "qsub", "qstat", "qdel")


class FakePbs:
    """A fake PBS. `root`: its folder. The path is short: sockets are made in there. `nodes`: their names."""

    def __init__(self, root: Path, nodes: tuple[str, ...] = ("nodea", "nodeb")) -> None:
        self.root, self.nodes = root, nodes
        self.bin = root / "bin"
        self.bin.mkdir()
        (root / "home").mkdir()
        (root / "nodes").write_text(" ".join(nodes))
        for name in COMMANDS:
            (self.bin / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{BIN}/pbs.py" {name} "$@"\n')
            (self.bin / name).chmod(0o755)

    @property
    def output(self) -> str:
        """What tasks have printed."""
        path = self.root / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, ranks: int = 2) -> dict[str, str]:
        """The variables of a process in a job that has all nodes, each with lines for some ranks in its file."""
        file = self.root / "nodefile"
        file.write_text("".join(f"{node}\n" * ranks for node in self.nodes))
        return {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "7.lab", "PBS_NODEFILE": str(file)}

    def told(self, number: str) -> dict[str, Any]:
        """What is known of a job that was submitted."""
        found: dict[str, Any] = json.loads((self.root / "jobs" / number).read_text())
        return found

    def processes(self) -> list[Process]:
        """Every process on the nodes."""
        return processes_with("FAKE_PBS", str(self.root))

    def remove(self) -> None:
        """Removes everything. Raises AssertionError if processes on nodes do not end by themselves; they are killed then."""
        left = kill_what_stays(self.processes, GRACE)
        shutil.rmtree(self.root, ignore_errors=True)
        assert not left, f"processes were left behind (and are killed now): {left}"


@pytest.fixture(autouse=True)
def fake_pbs_nodes() -> Iterator[list[FakePbs]]:
    """Where `fake_pbs` enters itself. Being autouse it is torn down last: `home` has ended every run by then."""
    made: list[FakePbs] = []
    yield made
    for fake in made:
        fake.remove()


@pytest.fixture
def fake_pbs(monkeypatch: pytest.MonkeyPatch, fake_pbs_nodes: list[FakePbs]) -> FakePbs:
    """Puts the commands of the fake in front of the PATH, for all that the test starts."""
    fake = FakePbs(Path(tempfile.mkdtemp(prefix="rd")))
    fake_pbs_nodes.append(fake)
    for name in list(os.environ):
        if name.startswith("PBS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FAKE_PBS", str(fake.root))
    monkeypatch.setenv("PATH", f"{fake.bin}:{os.environ['PATH']}")
    return fake
