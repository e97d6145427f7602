"""What `backend.name` may be."""

from __future__ import annotations

import pytest

from engine.core.plan.environment import backends_in
from tests.support import rows


@pytest.mark.parametrize(("name", "backends"), rows("unit/backend_names", "a_name_is_made_of_backends"))
def test_a_name_is_made_of_backends(name: str, backends: list[str]):
    assert backends_in(name) == tuple(backends)


@pytest.mark.parametrize(("name", "reason"), rows("unit/backend_names", "a_name_that_makes_no_sense_says_why"))
def test_a_name_that_makes_no_sense_says_why(name: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        backends_in(name)
