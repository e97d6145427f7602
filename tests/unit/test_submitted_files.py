"""What the files of a submitted run say before its supervisor has written anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from engine.runs.paths import RunPaths
from engine.runs.record import Submitted
from engine.runs.replay import is_queued, stored_snapshot

RUN = Path(__file__).parent.parent / "data" / "run_v1"


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_run_is_queued_until_its_first_event_is_written(tmp_path: Path, has_journal: bool) -> None:
    paths = RunPaths(tmp_path / "smoke-sq4f")
    paths.folder.mkdir()
    shutil.copy(RUN / paths.plan.name, paths.plan)
    paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0)))
    if has_journal:
        paths.journal.touch()  # as a supervisor that has just begun
    assert is_queued(paths)
    assert stored_snapshot(paths).run.state == "queued"
