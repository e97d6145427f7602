"""Files of a run that somebody has damaged or replaced are read as if they were not there, or refused with the reason; never for ever."""

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.client.engine import ReadOnlyRun
from engine.client.history import History
from engine.commands.clean import old_runs
from engine.core.errors import RankdeckError, SupervisorError
from engine.core.run.state import RunWord
from engine.core.views.view import RunNote
from engine.linux.files import MAX_FILE
from engine.runs import listing, record
from engine.runs.listing import summaries, summarise
from engine.runs.origins.origin import read_origin
from engine.runs.paths import RunPaths
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
    for path in (paths.plan, paths.journal, paths.summary, paths.supervisor, paths.job, paths.note, paths.series, paths.origin(0)):  # fmt: skip
        DAMAGES[request.param](path)
    return paths


def test_a_damaged_file_is_none_at_all(damaged: RunPaths) -> None:
    assert (record.read_summary(damaged), record.read_whereabouts(damaged), record.read_submitted(damaged)) == (
        None,
        None,
        None,
    )
    assert (record.read_note(damaged), read_saved(damaged), read_origin(damaged)) == (RunNote(), None, None)


def test_what_a_run_can_not_do_without_is_an_error_with_its_place(damaged: RunPaths) -> None:
    with pytest.raises(SupervisorError, match=r"plan\.json can't be read: ") as caught:
        record.read_plan(damaged)
    assert caught.value.hint == "rankdeck clean removes it"
    with pytest.raises(OSError, match=r"summary\.json") as told:
        record.read_value(damaged.summary, dict[str, int])
    assert told.value.filename == str(damaged.summary)
    with contextlib.suppress(SupervisorError):
        assert read_journal(damaged.journal) == []


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """An ended run, beside another one that nobody damages."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    paths = ended_run(tmp_path / "runs")
    paths.summary.write_bytes(msgspec.json.encode(summarise(paths)))
    shutil.copytree(paths.folder, paths.folder.with_name("smoke-good"))
    return paths


FILES = (
    "plan", "journal", "summary", "supervisor", "job", "note", "series", "profile", "guards", "lock", "supervisor_log", "checkpoints", "nodes"
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("files", [*((name,) for name in FILES), ("summary", "plan"), ("summary", "journal"), FILES])
def test_a_damaged_run_is_a_row_of_every_list(runs: RunPaths, files: tuple[str, ...], damage: str) -> None:
    for name in files:
        path: Path = getattr(runs, name)
        path.unlink(missing_ok=True)
        DAMAGES[damage](path)
    for _ in range(2):  # the second time with an index
        rows = {row.run: row for row in summaries()}
        assert rows.keys() == {"smoke-sq4f", "smoke-good"}
        is_lost = "summary" in files and len(files) > 1
        assert (rows["smoke-sq4f"].state == "succeeded") != is_lost
        if is_lost:
            assert rows["smoke-sq4f"].state in ("unreadable", "queued")
            assert str(runs.folder) in rows["smoke-sq4f"].reason
        assert {entry.summary.run for entry in History().read()} == rows.keys()
        assert "smoke-good" in {paths.run for paths in old_runs(0, 0.0)}
    with contextlib.suppress(RankdeckError):
        asyncio.run(ReadOnlyRun(runs).snapshot())


@pytest.mark.parametrize("damage", [*DAMAGES, "lost"])
def test_an_ended_run_is_read_once_however_the_index_is_damaged(
    runs: RunPaths, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = summaries(), History().read()
    for file in (Path(os.environ["XDG_RUNTIME_DIR"]) / "rankdeck" / "lists").iterdir():
        file.unlink()
        if damage in DAMAGES:
            DAMAGES[damage](file)
    assert (summaries(), History().read()) == before
    if damage != "folder":  # nothing can take its place
        monkeypatch.setattr(listing, "summarise", lambda paths: pytest.fail(f"{paths.run} was read"))
        assert (summaries(), History().read()) == before


def test_an_ended_run_that_changes_is_read_again(runs: RunPaths) -> None:
    (before,) = (row for row in summaries() if row.run == runs.run)
    runs.summary.write_bytes(msgspec.json.encode(msgspec.structs.replace(before, state="stopped")))
    record.write_note(runs, RunNote(text="other"))
    assert {(one.summary.state, one.note.text) for one in History().read()} == {("stopped", "other"), ("succeeded", "")}


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
    where = record.Whereabouts(host=socket.gethostname(), pid=1, version="0", socket=path)
    paths.supervisor.write_bytes(msgspec.json.encode(where))
    assert (found := summarise(paths)) is not None
    assert not found.reachable
