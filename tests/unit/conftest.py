"""Fixtures of several modules."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.supervisor.runner import Runner
from tests.played_run import play_run


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """See `play_run`."""
    with play_run(tmp_path) as runner:
        yield runner
