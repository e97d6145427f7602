"""What `backend.name` may be."""

import pytest

from engine.core.plan.environment import backends_in
from tests.support import from_table


@from_table
def test_a_name_is_made_of_backends(name: str, backends: list[str]):
    assert backends_in(name) == tuple(backends)


@from_table
def test_a_name_that_makes_no_sense_says_why(name: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        backends_in(name)
