"""What an agent is asked to start waits while the disk or the quota of its folder is full."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine.node.agent.ranks.jobs import Room


class Disk:
    """What the agent sends and handles, beside a disk that fails with an error, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.sent: list[dict[str, Any]] = []
        self.handled: list[dict[str, Any]] = []
        self.room = Room(lambda **message: self.sent.append(message), self.handled.append)
        usual = tempfile.TemporaryFile

        def open_file(**options: Any) -> Any:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            return usual(**options)

        monkeypatch.setattr(tempfile, "TemporaryFile", open_file)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_request_waits_for_space_and_is_told_once(disk: Disk, tmp_path: Path, number: int) -> None:
    disk.error = number
    for attempt in (1, 2):
        assert disk.room.must_wait({"attempt": attempt}, str(tmp_path))
    assert disk.sent == [{"type": "no_room", "reason": os.strerror(number), "path": str(tmp_path)}]
    disk.error = 0
    disk.room.look()
    assert disk.handled == [{"attempt": 1}, {"attempt": 2}]


def test_another_error_is_left_to_the_start_of_ranks(disk: Disk, tmp_path: Path) -> None:
    disk.error = errno.EIO
    assert not disk.room.must_wait({"attempt": 1}, str(tmp_path))
    assert disk.sent == []
