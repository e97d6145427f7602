"""Files of a run that somebody has damaged or replaced are read as if they were not there, or refused with the reason; never for ever."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import SupervisorError
from engine.core.run.state import RunWord
from engine.core.views.view import RunNote
from engine.linux.files import MAX_FILE
from engine.runs.listing import summarise
from engine.runs.origins.origin import read_origin
from engine.runs.paths import RunPaths
from engine.runs.record import (
    Whereabouts,
    read_note,
    read_plan,
    read_submitted,
    read_summary,
    read_value,
    read_whereabouts,
)
from engine.runs.replay import read_journal, read_saved
from tests.ended_run import ended_run


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "too large": sparse,
    "nested": lambda path: path.write_text("[" * 100_000),
    "nested values": lambda path: path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000 + "\n{}\n"),
    "another value": lambda path: path.write_text('{"run": 1}\n{}\n'),
    "no text": lambda path: path.write_bytes(b"\xff\0\n\xff\n"),
    "empty": Path.touch,
}


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "train-abcd")
    paths.folder.mkdir()
    for path in (
        paths.plan,
        paths.journal,
        paths.summary,
        paths.supervisor,
        paths.job,
        paths.note,
        paths.series,
        paths.origin(0),
    ):
        DAMAGES[request.param](path)
    return paths


def test_a_damaged_file_is_none_at_all(damaged: RunPaths) -> None:
    assert (read_summary(damaged), read_whereabouts(damaged), read_submitted(damaged)) == (None, None, None)
    assert (read_note(damaged), read_saved(damaged), read_origin(damaged)) == (RunNote(), None, None)


def test_what_a_run_can_not_do_without_is_an_error_with_its_place(damaged: RunPaths) -> None:
    with pytest.raises(SupervisorError, match=r"plan\.json can't be read: ") as caught:
        read_plan(damaged)
    assert caught.value.hint == "rankdeck clean removes it"
    with pytest.raises(OSError, match=r"summary\.json") as told:
        read_value(damaged.summary, dict[str, int])
    assert told.value.filename == str(damaged.summary)
    assert summarise(damaged) is None


def test_a_journal_is_read_whole_or_refused(damaged: RunPaths) -> None:
    with contextlib.suppress(SupervisorError, OSError):
        assert read_journal(damaged.journal) == []


@pytest.mark.parametrize("state", ["running", "holding"])
def test_a_line_that_is_older_than_the_journal_is_derived_from_it(
    tmp_path: Path, state: RunWord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk had no inode left when the run ended, so its line was never replaced."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    paths = ended_run(tmp_path)
    line = summarise(paths)
    assert line is not None
    paths.summary.write_bytes(msgspec.json.encode(msgspec.structs.replace(line, state=state, ended_at=None)))
    os.utime(paths.summary, (1.0, 1.0))
    assert summarise(paths) == line
    os.utime(paths.journal, (0.0, 0.0))
    assert (found := summarise(paths)) is not None
    assert (found.state, found.reachable) == (state, False)


@pytest.mark.parametrize("path", ["x" * 200, "a\0b", ""])
def test_a_recorded_socket_that_can_be_none_is_nobody(tmp_path: Path, path: str) -> None:
    paths = ended_run(tmp_path)
    line = summarise(paths)
    assert line is not None
    paths.summary.write_bytes(msgspec.json.encode(msgspec.structs.replace(line, state="running", ended_at=None)))
    where = Whereabouts(host=socket.gethostname(), pid=1, version="0", socket=path)
    paths.supervisor.write_bytes(msgspec.json.encode(where))
    assert (found := summarise(paths)) is not None
    assert not found.reachable
