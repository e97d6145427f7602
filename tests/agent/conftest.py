"""The node that every test of the agent has for itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.driver import Node


@pytest.fixture
def node(home: Path, work: Path) -> Iterator[Node]:
    node = Node(work)
    yield node
    node.leave()
