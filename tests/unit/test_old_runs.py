"""The files of a run that an earlier version wrote load for ever: plan, journal, series and summary."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.core.plan.environment import EnvWarning
from engine.runs.paths import RunPaths
from engine.runs.record import read_plan, read_summary
from engine.runs.replay import read_journal, stored_snapshot

RUN_OF_VERSION_1 = Path(__file__).parent.parent / "data" / "run_v1"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(Path(shutil.copytree(RUN_OF_VERSION_1, tmp_path / "smoke-sq4f")))


def test_a_plan_of_version_1_loads(paths: RunPaths) -> None:
    plan = read_plan(paths)
    assert (plan.name, plan.world_size, plan.backend.name, plan.workdir) == ("smoke", 2, "gloo", "/home/ann/project")
    assert (plan.program.kind, plan.program.target) == ("recipe", "linear")
    assert plan.stop_ladder[-1] == ("SIGKILL", 5.0)
    assert plan.warnings == (
        EnvWarning(
            place="smoke.toml:12",
            table="env",
            name="NCCL_TIMEOUT",
            problem="has no effect with gloo",
            hint="leave it out: only nccl reads it",
        ),
    )


def test_a_journal_and_series_of_version_1_load(paths: RunPaths) -> None:
    assert len(read_journal(paths.journal)) == 9
    snapshot = stored_snapshot(paths)
    assert (snapshot.run.state, snapshot.run.step, snapshot.run.world_size) == ("succeeded", 200, 2)
    assert sorted((series.rank, series.key) for series in snapshot.series) == [
        (rank, key) for rank in (0, 1) for key in ("loss", "lr", "throughput")
    ]
    assert all(len(series.buckets) == 6 and len(series.recent) == 4 for series in snapshot.series)


def test_a_summary_of_version_1_loads(paths: RunPaths) -> None:
    summary = read_summary(paths)
    assert summary is not None
    assert (summary.run, summary.state, summary.step) == ("smoke-sq4f", "succeeded", 200)
