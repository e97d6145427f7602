"""The recipe `spawn`: processes inside ranks, by each way to start them."""

import re
from pathlib import Path

import pytest

from tests.recipe_ranks import Ran, resumed, run_recipe, same_under_torchrun, start_recipe
from tests.support import LIGHT
from tests.warm_ranks import template

pytestmark = pytest.mark.slow

FORKED = ("--start-method", "fork", "--steps", "40")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("spawn"), "spawn", *FORKED)


def test_ranks_compare_what_their_processes_have_found(done: Ran):
    assert done.statuses == [0, 0], done.outputs
    said = [
        re.findall(r"^2 processes of one rank: learning rate (\S+), loss (\S+)$", one, re.M) for one in done.outputs
    ]
    assert [rate for ((rate, _),) in said] == ["0.0125", "0.025"]
    assert done.final("loss") == min(float(loss) for ((_, loss),) in said)
    for rank in (0, 1):
        assert list(done.losses(rank)) == list(range(1, 41))
        assert done.losses(rank)[40] == pytest.approx(float(said[rank][0][1]), abs=1e-6)
    assert done.final("loss") < done.losses(0)[1] / 5
    assert "best learning rate: 0.025\n" in done.outputs[0]


def test_the_losses_are_the_same_under_torchrun(done: Ran, tmp_path: Path):
    assert same_under_torchrun(done, tmp_path, "spawn", *FORKED).outputs == done.outputs


def test_killed_processes_resume_as_if_unbroken(done: Ran, tmp_path: Path):
    words = (*FORKED, "--checkpoint-every", "10")
    assert resumed(done, tmp_path, "spawn", *words, killed_at=25, after=20).outputs == done.outputs
    assert run_recipe(tmp_path, "spawn", *words).outputs == done.outputs, "all steps were done"


def test_a_new_python_finds_the_same(tmp_path: Path):
    words = ("--processes", "2", "--steps", "5")
    spawned = run_recipe(
        tmp_path / "spawn", "spawn", *words, launcher="torchrun", world=1, env={"PYTHONPATH": str(LIGHT)}
    )
    forked = run_recipe(tmp_path / "fork", "spawn", *words, "--start-method", "fork", launcher="python")
    assert spawned.statuses == forked.statuses == [0], spawned.outputs
    assert spawned.losses() == forked.losses()
    assert spawned.final("loss") == forked.final("loss")


def test_processes_end_with_their_rank(tmp_path: Path):
    gang = start_recipe(tmp_path, "spawn", "--start-method", "fork", "--steps", "1000000", world=1)
    try:
        gang.wait_for(lambda: len(gang.metrics(0)) >= 3)
    finally:
        gang.end()
    template().check_nothing_is_left()
