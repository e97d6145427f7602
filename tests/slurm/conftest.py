"""A Slurm for all tests of a worker, started once and healed after each; and the proof that no test leaves a process on a node."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GRACE
from tests.slurm.lab import Slurm, end_processes, reason_to_skip
from tests.support import ROOT

OF_A_JOB = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_HET_SIZE", "SLURM_CLUSTERS")
"""Variables of a job in which the tests themselves may run."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Slurm with two nodes, or what a module has instead, which lives as long as the tests of this worker do."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Slurm(count=2) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A site with two nodes, started once for all modules of this worker that have it as their `cluster`."""
    if reason := reason_to_skip(site=True):
        pytest.skip(reason)
    shared = (tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix))
    with Slurm(count=2, site=True, shared=shared) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def nodes_are_left_clean(cluster: Slurm) -> Iterator[None]:
    """Fails a test that leaves a process on a node.

    Being autouse it is the first to be set up, and so the last to be torn down: `home` has ended every run by then.
    """
    yield
    end = time.monotonic() + GRACE
    while (left := cluster.processes()) and time.monotonic() < end:
        time.sleep(0.02)
    end_processes(left)
    cluster.heal()
    assert not left, f"processes were left behind (and are killed now): {left}"


@pytest.fixture
def slurm(cluster: Slurm, home: object, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Slurm with two free nodes, whose commands this test finds."""
    for name in OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    return cluster


@pytest.fixture
def job(slurm: Slurm) -> Iterator[str]:
    """The number of a job that has both nodes and does nothing."""
    with slurm.job("--gres=gpu:2", "--export=NONE") as number:
        yield number
