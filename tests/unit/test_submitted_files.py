"""What the files of a submitted run say before its supervisor has written anything."""

from pathlib import Path

import msgspec
import pytest

from engine.core.errors import RunNotFoundError
from engine.runs.listing import find_run
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


def test_a_run_is_found_by_the_number_of_its_job_unless_an_id_begins_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path))
    paths = ended_run(tmp_path / "runs")
    paths.job.write_bytes(msgspec.json.encode(Submitted(job="17", at=1000.0, next="18")))
    assert [find_run(word).run for word in ("17", "18")] == [paths.run] * 2
    paths.folder.with_name("17-run-abcd").mkdir()
    (tmp_path / "runs/17-run-abcd/plan.json").write_bytes(paths.plan.read_bytes())
    assert find_run("17").run == "17-run-abcd"
    with pytest.raises(RunNotFoundError, match="there is no run '19'"):
        find_run("19")
