"""A cluster for all tests of a worker, made once and healed after each; and the proof that no test leaves a process on a node."""

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, cluster_for
from tests.conftest import GRACE, WriteProfile
from tests.support import LIGHT


@pytest.fixture(scope="session")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, which lives as long as the tests of this worker do."""
    yield from cluster_for(tmp_path_factory, 4)


@pytest.fixture(autouse=True)
def nodes_are_left_clean(four_nodes: Cluster) -> Iterator[None]:
    """Fails a test that leaves a process on a node.

    Being autouse it is the first to be set up, and so the last to be torn down: `home` has ended every run by then.
    """
    yield
    end = time.monotonic() + GRACE
    while (left := four_nodes.processes()) and time.monotonic() < end:
        time.sleep(0.02)
    four_nodes.heal()
    assert not left, f"processes were left behind (and are killed now): {left}"


@pytest.fixture
def write_profile(write_profile: WriteProfile) -> WriteProfile:
    """A session of ssh has none of our environment: processes on nodes get from the profile what saves them the whole torch."""
    return functools.partial(write_profile, env={"PYTHONPATH": str(LIGHT)})


@pytest.fixture
def cluster(four_nodes: Cluster, home: Path) -> Iterator[Cluster]:
    """Four nodes, all well.

    After the test, cables are put back and sshds listen, so that `home` can end runs that go on as a user would.
    """
    yield four_nodes
    four_nodes.reconnect()
