"""Event files are found by their names: those of the run's ranks, wherever they lie in the working directory."""

import os
from pathlib import Path

import pytest

from engine.runs.foreign import event_files
from engine.runs.foreign.event_files import find_files, read_new
from tests.support import entries

RECORDED = Path(__file__).resolve().parent.parent / "data" / "event_files" / "tensorboard"


def test_files_of_the_ranks_are_found_and_no_others(tmp_path: Path) -> None:
    wanted = {
        "runs/a/events.out.tfevents.1000.node.with.dots.41.0": 0,
        "lightning_logs/version_0/events.out.tfevents.1001.node.42.7.v2": 1,
        "events.out.tfevents.1002.node": 0,
    }
    others = entries("unit/event_files", "files_of_the_ranks_are_found_and_no_others")
    for name in (*wanted, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert find_files(tmp_path, {41: 0, 42: 1}, 1000.0, 60.0) == {
        tmp_path / name: rank for name, rank in wanted.items()
    }
    assert find_files(tmp_path / "nothing", {}, 1000.0, 60.0) == {}


def test_a_search_ends_in_a_folder_with_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "MAX_ENTRIES", 10)
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "events.out.tfevents.1000.node").touch()
    assert find_files(tmp_path, {}, 1000.0, 60.0) == {}


def test_a_file_is_read_in_slices_and_large_records_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_files, "SLICE", 300)
    path, offset, found = tmp_path / "events", 0, []
    path.write_bytes(RECORDED.read_bytes()[:-1])
    while (part := read_new(path, offset))[1] > offset:
        found += part[0]
        offset = part[1]
    assert [one.tag for one in found].count("train/loss") == 6
    assert "val/loss" not in [one.tag for one in found], "its record is not whole"


def test_what_is_no_file_of_events_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("events, so to say: " * 9)
    with pytest.raises(ValueError, match="a record of"):
        read_new(tmp_path / "text", 0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_new(tmp_path / "pipe", 0)
