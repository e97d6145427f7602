"""What the files of a submitted run say before its supervisor has written anything."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.runs.record import Submitted
from engine.runs.replay import is_queued, stored_snapshot
from tests.ended_run import ended_run


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_run_is_queued_until_its_first_event_is_written(tmp_path: Path, has_journal: bool) -> None:
    paths = ended_run(tmp_path)
    paths.journal.unlink()
    paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0)))
    if has_journal:
        paths.journal.touch()  # as a supervisor that has just begun
    assert is_queued(paths)
    assert stored_snapshot(paths).run.state == "queued"
