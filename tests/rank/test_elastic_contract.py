"""One kill of each script of the contract of elastic states; `benchmarks/elastic_states.py` makes all of them."""

import random
from pathlib import Path

import pytest

from tests.rank.elastic_contract import REFUSED, SCRIPTS, Bench, Case, cases
from tests.support import entries

pytestmark = pytest.mark.slow

MUST_BE_RIGHT = sorted(SCRIPTS.keys() - {"compile"})  # the scripts but one, which imports for ten seconds


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Runs the cases."""
    return Bench(tmp_path_factory.mktemp("states"))


@pytest.mark.parametrize("script", MUST_BE_RIGHT)
def test_a_state_is_right_after_a_kill(bench: Bench, script: str) -> None:
    kill = random.Random(script).choice(cases(script))
    verdict = bench.run(kill)
    lost = ("BatchNorm" in script or script.startswith("counted first")) and verdict.word == "refused"
    assert verdict.word == "right" or lost, f"{kill}: {verdict.word}: {verdict.why}"


KILLS = entries("rank/elastic_contract", "kills")
"""A kill in each script that can be undisturbed: after it, the ranks can't be right."""


@pytest.mark.parametrize("script", REFUSED)
def test_what_can_t_be_right_is_refused_by_name(bench: Bench, script: str, tmp_path: Path) -> None:
    phase, step = KILLS.get(script, ("forward", 4))
    verdict = bench.run(Case(script, phase, step, 1))
    assert verdict.word == "refused", verdict.why
