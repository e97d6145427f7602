"""The journal: what a crash or a faulty node leaves of its last line."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from engine.core.errors import SupervisorError
from engine.core.run import events as ev
from engine.runs.replay import read_journal
from engine.supervisor.journal import Journal

CLOSED = ev.NodeClosed(at=1.0, node="a")
STOPPED = ev.StopRequested(at=2.0, by="alice")
RESTARTED = ev.RestartRequested(at=3.0, by="alice")


@pytest.mark.parametrize(
    "last",
    [b'{"event":"NodeClosed","at":1', b'{"event":"NodeClosed"\n', b"\xff\xfe\x00\n", b'{"event":"NodeClosed","node":"\xff"}\n', b"\0" * 512 + b"\n"],
    ids=["torn", "cut off", "not text", "not UTF-8", "zeros"],
)  # fmt: skip
def test_a_last_line_that_can_not_be_read_is_cut_off(last: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(CLOSED)
    journal.close()
    with path.open("ab") as file:
        file.write(last)
    assert read_journal(path) == [CLOSED]
    journal = Journal(path)
    journal.append(STOPPED)
    journal.close()
    assert read_journal(path) == [CLOSED, STOPPED]


@pytest.mark.parametrize("line", [b"{}\n", b"\xff\n"])
def test_an_earlier_line_that_can_not_be_read_is_an_error_with_its_number(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line + b'{"event":"NodeClosed","at":1.0,"node":"a"}\n')
    with pytest.raises(SupervisorError, match=r"journal\.jsonl:1: not an event"):
        read_journal(path)


@pytest.mark.parametrize(
    "abandoned", [["7"], [None], "7", [7.5], 7], ids=lambda value: type(value).__name__ + str(value)
)
def test_what_is_no_event_is_never_written(abandoned: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with pytest.raises(ValueError, match="abandoned"):
        journal.append(ev.NodeCleared(at=1.0, attempt=0, node="a", abandoned=abandoned))
    journal.append(CLOSED)
    journal.close()
    assert read_journal(path) == [CLOSED]


@pytest.fixture(params=[errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the disk or the quota is full: it takes three bytes, then nothing."""
    is_full, write = [True], os.write

    def write_some(file: int, data: bytes) -> int:
        if not is_full[0]:
            return write(file, data)
        if len(data) < 30:
            raise OSError(request.param, os.strerror(request.param))
        return write(file, data[:3])

    monkeypatch.setattr(os, "write", write_some)
    return is_full


def test_events_wait_for_room_in_their_order(tmp_path: Path, full_disk: list[bool]) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    error = journal.append(CLOSED)
    assert error is not None
    assert error.filename == str(path)
    assert journal.append(STOPPED) is not None, "a stop may be what makes room"
    assert (journal.is_behind, read_journal(path), path.stat().st_size) == (True, [], 0)
    full_disk[0] = False
    assert journal.append(CLOSED) is None
    assert not journal.is_behind
    assert read_journal(path) == journal.events == [CLOSED, STOPPED, CLOSED]
    journal.close()


def test_what_waits_is_written_without_a_further_event(tmp_path: Path, full_disk: list[bool]) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(CLOSED)
    assert journal.write_waiting() is not None
    full_disk[0] = False
    assert journal.write_waiting() is None
    assert read_journal(tmp_path / "journal.jsonl") == [CLOSED]
    journal.close()


def test_a_restart_is_refused_without_room_and_is_not_written_later(tmp_path: Path, full_disk: list[bool]) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(CLOSED)
    with pytest.raises(OSError, match=r"No space left|quota exceeded"):
        journal.append(RESTARTED)
    full_disk[0] = False
    assert journal.write_waiting() is None
    assert read_journal(tmp_path / "journal.jsonl") == journal.events == [CLOSED]
    journal.close()


def test_an_intent_that_does_not_reach_the_disk_is_not_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(CLOSED)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        journal.append(RESTARTED)
    journal.close()
    assert journal.events == read_journal(path) == [CLOSED]
