"""The socket of an agent, where its disk is full."""

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.linux.files import replace_file
from engine.node.agent import folders


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A runtime folder with a short path, as a socket needs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def fail(path: str, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", path)


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


@pytest.mark.usefixtures("runtime")
def test_a_second_socket_of_the_same_path_needs_no_room_for_its_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with folders.listen(str(tmp_path), "mark") as first:
        monkeypatch.setattr(folders, "replace_file", fail)
        with folders.listen(str(tmp_path), "mark") as second:
            assert second.getsockname() == first.getsockname()
            assert connects(second.getsockname())


@pytest.mark.usefixtures("runtime")
def test_the_earlier_socket_stays_where_the_path_of_a_new_one_can_not_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folders.listen(str(tmp_path), "mark") as first:
        (tmp_path / "socket").write_text("elsewhere")
        monkeypatch.setattr(folders, "replace_file", fail)
        with pytest.raises(OSError, match="No space left"):
            folders.listen(str(tmp_path), "mark")
        assert connects(first.getsockname())


def test_a_file_that_can_not_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", lambda source, target: fail(str(target), b""))
    with pytest.raises(OSError, match="No space left"):
        replace_file(str(tmp_path / "file"), b"data")
    assert list(tmp_path.iterdir()) == []
