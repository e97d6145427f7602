"""The recipes `local-sgd` and `elastic`: averages now and then equal those of each step; a world of changing size trains as a fixed one."""

import re
from pathlib import Path

import pytest

from tests.recipe_ranks import Ran, resumed, run_recipe, same_under_torchrun

pytestmark = pytest.mark.slow

LOCAL = ("--steps", "60", "--batch", "16", "--hidden", "16")
ELASTIC = ("--steps", "30", "--width", "32", "--lr", "0.3")

# --- local-sgd


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("local"), "local-sgd", *LOCAL, "--every", "7")


def test_local_sgd_learns_and_reports_the_drift_at_each_average(local: Ran):
    assert local.statuses == [0, 0], local.outputs
    assert local.final("accuracy") > 0.7
    drift = local.losses(name="drift")
    assert list(drift) == [*range(7, 60, 7), 60]
    assert all(value > 0 for value in drift.values())
    assert re.search(r"^rank 0: 9 averages took \d+% of the time$", local.outputs[0], re.MULTILINE)


def test_an_average_after_each_step_equals_averaged_gradients(tmp_path: Path):
    """`two-backends` averages gradients, of the same model on the same images."""
    words = ("--steps", "20", "--batch", "16", "--hidden", "16")
    ours = run_recipe(tmp_path / "ours", "local-sgd", *words, "--every", "1")
    theirs = run_recipe(tmp_path / "theirs", "two-backends", *words, "--largest", "4")
    assert ours.statuses == theirs.statuses == [0, 0], ours.outputs
    mean = {step: (ours.losses(0)[step] + ours.losses(1)[step]) / 2 for step in ours.losses()}
    assert mean == pytest.approx(theirs.losses(), abs=1e-5)
    assert ours.final("accuracy") == theirs.final("accuracy")


def test_local_sgd_has_the_same_losses_under_torchrun(local: Ran, tmp_path: Path):
    same_under_torchrun(local, tmp_path, "local-sgd", *LOCAL, "--every", "7")


def test_a_killed_local_sgd_resumes_as_if_unbroken(local: Ran, tmp_path: Path):
    words = (*LOCAL, "--every", "7", "--checkpoint-every", "2")
    resumed(local, tmp_path, "local-sgd", *words, killed_at=40, after=28)


def test_digits_of_its_own_on_each_rank_make_local_sgd_worse(local: Ran, tmp_path: Path):
    other = run_recipe(tmp_path, "local-sgd", *LOCAL, "--every", "30", "--sorted", world=4)
    assert other.statuses == [0] * 4, other.outputs
    assert other.final("accuracy") < local.final("accuracy") - 0.1
    assert max(other.losses(name="drift").values()) > 2 * max(local.losses(name="drift").values())


# --- elastic


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("fixed"), "elastic", *ELASTIC, "--worlds", "1,1,1", launcher="python")


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("changing"), "elastic", *ELASTIC)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_world_that_shrinks_and_grows_trains_as_a_fixed_one(fixed: Ran, changing: Ran, tmp_path: Path, ranks: int):
    other = changing if ranks == 2 else run_recipe(tmp_path, "elastic", *ELASTIC, "--worlds", "4,1,3", world=ranks)
    assert other.statuses == [0] * ranks, other.outputs
    assert list(other.losses()) == list(range(1, 91))
    assert other.losses() == pytest.approx(fixed.losses(), abs=1e-3)
    assert other.final("accuracy") == pytest.approx(fixed.final("accuracy"), abs=0.01)
    assert other.final("accuracy") > 0.75
    assert "rank 1: waits while 1 ranks train generation 2\n" in other.outputs[1]
    assert list(other.losses(1)) == [*range(1, 31), *range(61, 91)]
    size = {line["step"]: line["world"] for line in other.metrics[0]}
    assert [size[step] for step in (1, 31, 61)] == ([2, 1, 2] if ranks == 2 else [4, 1, 3])


def test_a_world_of_changing_size_has_the_same_losses_under_torchrun(changing: Ran, tmp_path: Path):
    same_under_torchrun(changing, tmp_path, "elastic", *ELASTIC)


def test_a_killed_world_of_changing_size_resumes_in_its_generation_as_if_unbroken(changing: Ran, tmp_path: Path):
    words = (*ELASTIC, "--checkpoint-every", "10")
    again = resumed(changing, tmp_path, "elastic", *words, killed_at=75, after=70)
    for rank in (0, 1):
        assert f"rank {rank} of 2: generation 3 of 3 goes on after step 70\n" in again.outputs[rank]


def test_a_generation_of_more_ranks_than_there_are_is_refused_with_one_line(tmp_path: Path):
    refused = run_recipe(tmp_path, "elastic", "--worlds", "2,3")
    assert refused.statuses == [2, 2]
    assert refused.outputs == ["elastic: --worlds 2,3 needs 3 ranks, and there are 2\n"] * 2
