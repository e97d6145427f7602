"""A defect in how a supervisor handles what agents report."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from engine.core.run import events as ev
from engine.runs.replay import read_journal
from engine.supervisor.runner import Runner
from engine.supervisor.watches import files as file_watch
from engine.supervisor.watches.files import FileWatch
from tests.played_run import hear, play_run

GPUS = {"type": "gpus", "attempt": 0, "ranks": []}
ENDED = {"type": "ended", "attempt": 0, "rank": 1, "status": 7, "reason": "", "generation": 0}


def fail(*arguments: Any) -> Any:
    raise KeyError("defect")


def warnings(runner: Runner) -> list[str]:
    return [event.text for event in runner._journal.events if isinstance(event, ev.NodeWarned)]


def test_reports_whose_handling_fails_again_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with play_run(tmp_path) as runner:
        monkeypatch.setattr(runner.reports, "_take_use", fail)
        with pytest.raises(ValueError, match="GpusUsed was not handled: KeyError: 'defect'"):
            hear(runner, GPUS)  # the connection is made again
        assert warnings(runner) == []
        hear(runner, GPUS)
        hear(runner, GPUS)
        assert warnings(runner) == ["reports of the kind GpusUsed are left out: KeyError: 'defect'"]


def test_the_end_of_a_rank_is_known_although_its_details_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with play_run(tmp_path) as runner:
        monkeypatch.setattr(runner.ingest, "catch_up", fail)
        monkeypatch.setattr(runner, "_read_traces", lambda: None)  # it needs an event loop
        hear(runner, ENDED)
        ends = [event for event in runner._journal.events if isinstance(event, ev.RankEnded)]
        assert [(end.rank, end.status, end.step) for end in ends] == [(1, 7, None)]
        assert warnings(runner) == ["the last step of a rank is not known: KeyError: 'defect'"]


def test_an_invalid_report_costs_the_connection_each_time(tmp_path: Path) -> None:
    with play_run(tmp_path) as runner:
        for _ in range(2):
            with pytest.raises(ValueError, match="rank 3 is not on gpu01"):
                hear(runner, {**ENDED, "rank": 3})


async def test_a_run_without_the_watch_of_files_ends_when_its_journal_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = os.write, iter((False, False, True))

    def write_at_last(file: int, data: bytes) -> int:
        if not next(tries):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with play_run(tmp_path) as runner:
        runner.run.paths.plan.touch()
        journal = runner._journal
        watch = FileWatch(runner.run, journal)
        monkeypatch.setattr(file_watch, "WATCH_PERIOD", 0.01)
        monkeypatch.setattr(os, "write", write_at_last)
        assert journal.append(ev.NodeClosed(at=5.0, node="gpu01")) is not None
        await watch.wait_written()
        monkeypatch.setattr(os, "write", write)
        assert not journal.is_behind
        assert read_journal(runner.run.paths.journal) == journal.events
