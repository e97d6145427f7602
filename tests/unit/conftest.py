"""Fixtures of several modules."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.supervisor.runner import Runner
from tests.played_run import play_run

WriteCommand = Callable[[str, str], Path]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """See `play_run`."""
    with play_run(tmp_path) as runner:
        yield runner


@pytest.fixture
def write_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteCommand:
    """Puts a shell script on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write
