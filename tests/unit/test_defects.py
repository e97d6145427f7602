"""A defect in how a supervisor handles what agents report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.run import events as ev
from engine.supervisor.runner import Runner
from tests.played_run import hear, play_run

GPUS = {"type": "gpus", "attempt": 0, "ranks": []}
ENDED = {"type": "ended", "attempt": 0, "rank": 1, "status": 7, "reason": "", "generation": 0}


def fail(*arguments: Any) -> Any:
    raise KeyError("defect")


def warnings(runner: Runner) -> list[str]:
    return [event.text for event in runner._journal.events if isinstance(event, ev.NodeWarned)]


def test_reports_whose_handling_fails_again_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with play_run(tmp_path) as runner:
        monkeypatch.setattr(runner.reports, "_take_gpu_use", fail)
        with pytest.raises(ValueError, match="GpusUsed was not handled: KeyError: 'defect'"):
            hear(runner, GPUS)  # the connection is made again
        assert warnings(runner) == []
        hear(runner, GPUS)
        hear(runner, GPUS)
        assert warnings(runner) == ["reports of the kind GpusUsed are left out: KeyError: 'defect'"]


def test_the_end_of_a_rank_is_known_although_its_details_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
