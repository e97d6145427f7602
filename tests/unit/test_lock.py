"""The lock of a run."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from engine.core.errors import CheckError, SupervisorError
from engine.linux.locks import is_locked
from engine.node.agent import folders
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths


def test_only_one_process_holds_the_lock_of_a_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    lock = take_lock(paths)
    with pytest.raises(SupervisorError, match="already has a supervisor"):
        take_lock(paths)
    os.close(lock)
    os.close(take_lock(paths))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CheckError, match=r"does not support file locks \(flock\)") as caught:
        take_lock(RunPaths(tmp_path))
    assert "RANKDECK_HOME" in (caught.value.hint or "")
    with pytest.raises(RuntimeError, match=rf"{tmp_path} needs file locks \(flock\): {os.strerror(number)}"):
        folders.take_lock(str(tmp_path))
    with pytest.raises(OSError, match=os.strerror(number)):
        is_locked(RunPaths(tmp_path).lock)
