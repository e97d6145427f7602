"""What a supervisor leaves in the runtime folder."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runs.paths import RunPaths
from engine.runs.record import remove_runtime_files, runtime_files


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a path that is short enough for sockets; its `now` is the runtime folder of this login."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        (Path(name) / "now").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{name}/now")
        yield Path(name)


def new_run(base: Path, socket: Path | None = None) -> RunPaths:
    """A run whose supervisor has listened at this socket; None: at the usual one."""
    paths = RunPaths(base / "train-abcd")
    paths.folder.mkdir()
    where = {"host": "h", "pid": 1, "version": "0.0", "socket": str(socket or paths.socket)}
    paths.supervisor.write_text(json.dumps(where))
    return paths


def test_files_of_a_supervisor_of_another_login_are_removed_and_nothing_else(base: Path) -> None:
    other = base / "other" / "rankdeck"
    other.mkdir(parents=True)
    paths = new_run(base, other / f"{RunPaths(base / 'train-abcd').mark}.sock")
    for folder in (other, paths.socket.parent):
        for name in (f"{paths.mark}.sock", f"agent-{paths.mark}.sock", "another-run.sock"):
            (folder / name).touch()
    assert len(runtime_files(paths)) == 4
    assert not [path for path in runtime_files(paths, of_agent=False) if path.name.startswith("agent-")]
    remove_runtime_files(paths)
    assert [path.name for path in base.rglob("*.*") if path.suffix in (".sock", ".parts")] == ["another-run.sock"] * 2


def test_a_recorded_socket_of_another_name_is_left_alone(base: Path) -> None:
    paths = new_run(base, base / "precious.sock")
    (base / "precious.sock").touch()
    remove_runtime_files(paths)
    assert (base / "precious.sock").exists()
