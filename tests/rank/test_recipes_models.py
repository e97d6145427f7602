"""The recipes `pipeline` and `model-parallel`, which cut a model: they learn as the whole model does, over each backend."""

import re
import shutil
from pathlib import Path

import pytest

from tests.recipe_ranks import Ran, resumed, run_recipe, same_under_torchrun

pytestmark = pytest.mark.slow

PIPELINE = ("--steps", "35", "--batch", "96", "--micro-batches", "4", "--width", "32", "--layers", "4", "--lr", "0.01")
PARALLEL = ("--steps", "60", "--batch", "32", "--lr", "0.02")

# --- pipeline


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("pipeline"), "pipeline", *PIPELINE, world=2)


def test_all_schedules_learn_the_same(pipeline: Ran):
    assert pipeline.statuses == [0, 0], pipeline.outputs
    losses = list(pipeline.losses(1).values())
    assert len(losses) == 105
    assert losses[35:70] == pytest.approx(losses[:35], abs=1e-4)
    assert losses[70:] == pytest.approx(losses[:35], abs=1e-4)
    assert pipeline.losses(0) == pipeline.losses(1), "the last rank tells its loss"
    assert pipeline.final("accuracy") > 0.9


def test_each_rank_says_how_long_it_idled(pipeline: Ran):
    for rank, output in enumerate(pipeline.outputs):
        found = re.findall(rf"rank {rank}: (\S+)  loss \S+  bubble (\d+)% of a step, by the formula (\d+)%", output)
        assert [(name, formula) for name, _, formula in found] == [("by-hand", "50"), ("gpipe", "20"), ("1f1b", "20")]
        assert all(0 < int(measured) <= 100 for _, measured, _ in found)


def test_four_stages_and_one_stage_learn_what_two_do(pipeline: Ran, tmp_path: Path):
    four = run_recipe(tmp_path / "four", "pipeline", *PIPELINE, "--schedule", "1f1b", world=4)
    one = run_recipe(tmp_path / "one", "pipeline", *PIPELINE, "--schedule", "by-hand", launcher="python")
    expected = [loss for step, loss in pipeline.losses().items() if step <= 35]
    for other in (four, one):
        assert not any(other.statuses), other.outputs
        assert list(other.losses().values()) == pytest.approx(expected, abs=1e-4)


def test_the_losses_of_a_pipeline_are_the_same_under_torchrun(pipeline: Ran, tmp_path: Path):
    same_under_torchrun(pipeline, tmp_path, "pipeline", *PIPELINE)


def test_a_killed_pipeline_resumes_as_if_unbroken_with_other_stages_too(pipeline: Ran, tmp_path: Path):
    words = (*PIPELINE, "--checkpoint-every", "10")
    assert run_recipe(tmp_path, "pipeline", *words, killed_at=58).statuses.count(-9)
    (kept,) = (tmp_path / "checkpoints").iterdir()
    shutil.copytree(kept, tmp_path / "other" / "checkpoints" / kept.name)
    again = run_recipe(tmp_path, "pipeline", *words)
    assert again.statuses == [0, 0], again.outputs
    assert again.outputs[1].startswith("rank 1: resumes gpipe after step 20 of 35\n")
    assert again.losses() == {step: pipeline.losses()[step] for step in range(56, 106)}
    assert again.final("accuracy") == pipeline.final("accuracy")
    four = run_recipe(tmp_path / "other", "pipeline", *words, world=4)
    assert four.statuses == [0] * 4, four.outputs
    assert four.losses() == pytest.approx(again.losses(), abs=1e-4)

    done = run_recipe(tmp_path, "pipeline", *words)
    assert done.final("accuracy") == pipeline.final("accuracy"), "all steps were done"
    refused = run_recipe(tmp_path, "pipeline", *words, "--layers", "2")
    assert refused.statuses == [1, 1]
    assert "has layers 4, not 2: delete it, or name another folder\n" in refused.outputs[0]


def test_what_makes_no_pipeline_is_refused_with_one_line(tmp_path: Path):
    few = run_recipe(tmp_path / "few", "pipeline", "--micro-batches", "1", launcher="rankdeck", world=2)
    assert few.statuses == [2, 2]
    assert few.outputs[0] == "pipeline: 2 ranks need --layers 2 and --micro-batches 2, or more\n"


# --- model-parallel


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_recipe(tmp_path_factory.mktemp("parallel"), "model-parallel", *PARALLEL, world=2)


def test_a_model_on_two_devices_learns(parallel: Ran):
    assert parallel.statuses == [0, 0], parallel.outputs
    assert (
        "rank 1 of 2: two stand-ins, both of which are cpu: 4,352 parameters on the first, 8,515" in parallel.outputs[1]
    )
    assert parallel.final("accuracy") > 0.85
    assert parallel.losses(0) != parallel.losses(1), "each rank has points of its own"


def test_the_losses_on_two_devices_are_the_same_under_torchrun(parallel: Ran, tmp_path: Path):
    same_under_torchrun(parallel, tmp_path, "model-parallel", *PARALLEL)


def test_a_killed_training_on_two_devices_resumes_as_if_unbroken(parallel: Ran, tmp_path: Path):
    words = (*PARALLEL, "--checkpoint-every", "20")
    again = resumed(parallel, tmp_path, "model-parallel", *words, killed_at=45, after=40)
    assert list(again.losses()) == list(range(41, 61))
    path = tmp_path / "checkpoints" / "step-60.pt"
    other = run_recipe(tmp_path, "model-parallel", *words, "--first", "1")
    assert other.statuses == [1, 1]
    assert other.outputs[0].splitlines()[-1].startswith(f"{path} is of another training: cut is 2 there, and 1 here")
