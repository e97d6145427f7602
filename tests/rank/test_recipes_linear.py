"""The recipes `linear-allreduce` and `linear-hooks`: they learn, and do so as DistributedDataParallel does, step for step."""

from pathlib import Path

import pytest

from tests.recipe_ranks import Ran, resumed, run_recipe, same_under_torchrun

pytestmark = pytest.mark.slow

STEPS = ("--steps", "60")


RECIPES = ("linear", "linear-allreduce", "linear-hooks")


def run_all(folder: Path, world: int) -> dict[str, Ran]:
    return {recipe: run_recipe(folder / recipe, recipe, *STEPS, world=world) for recipe in RECIPES}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("linear"), 2)


@pytest.mark.parametrize("world", [2, 4])
def test_averages_by_hand_by_hooks_and_by_ddp_agree_step_for_step(on_two: dict[str, Ran], tmp_path: Path, world: int):
    ddp, by_hand, by_hooks = (on_two if world == 2 else run_all(tmp_path, world)).values()
    assert ddp.statuses == by_hand.statuses == by_hooks.statuses == [0] * world, by_hooks.outputs
    for rank in range(world):
        assert list(ddp.losses(rank)) == list(range(1, 61))
        assert by_hand.losses(rank) == pytest.approx(ddp.losses(rank), abs=1e-6)
        assert by_hooks.losses(rank) == pytest.approx(ddp.losses(rank), abs=1e-6)
    assert by_hand.losses(0) != by_hand.losses(1), "each rank has samples of its own"
    assert by_hand.final("loss") == pytest.approx(by_hooks.final("loss"), abs=1e-6)
    assert by_hand.final("loss") == pytest.approx(ddp.final("loss"), abs=1e-6)
    assert by_hand.final("loss") < 0.05 < by_hand.losses(0)[1]
    assert "largest difference of a parameter between ranks: 0.000000\n" in by_hand.outputs[0]


def test_without_the_average_the_ranks_come_apart(tmp_path: Path):
    done = run_recipe(tmp_path, "linear-allreduce", *STEPS, "--no-average")
    assert done.statuses == [0, 0], done.outputs
    difference = float(done.outputs[0].partition("largest difference of a parameter between ranks: ")[2].split()[0])
    assert difference > 0.01


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_loss_is_the_same_under_torchrun(on_two: dict[str, Ran], tmp_path: Path, recipe: str):
    assert same_under_torchrun(on_two[recipe], tmp_path, recipe, *STEPS).outputs == on_two[recipe].outputs


@pytest.mark.parametrize("recipe", ["linear-allreduce", "linear-hooks"])
def test_a_killed_training_resumes_as_if_unbroken(tmp_path: Path, recipe: str):
    words = (*STEPS, "--checkpoint-every", "20")
    unbroken = run_recipe(tmp_path / "unbroken", recipe, *words, world=3)
    again = resumed(unbroken, tmp_path / "broken", recipe, *words, killed_at=45, after=40)
    for rank in range(3):
        assert again.outputs[rank].startswith(f"rank {rank} of 3 on cpu: resumes after step 40\n")


@pytest.mark.parametrize("recipe", ["linear-allreduce", "linear-hooks"])
def test_it_runs_alone(tmp_path: Path, recipe: str):
    done = run_recipe(tmp_path, recipe, "--preset", "small", "--batch", "64", launcher="python")
    assert done.statuses == [0], done.outputs
    assert len(done.losses()) == 20
    assert done.final("loss") < done.losses()[1] / 5
