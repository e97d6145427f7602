"""`fsdp-gpt` and `tensor-parallel`: they learn over each backend; sharded checkpoints resume on more ranks and survive faults."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.recipe_ranks import RECIPES, Gang, Ran, run_recipe, same_under_torchrun
from tests.support import entries

pytestmark = pytest.mark.slow

FSDP = ("--batch", "8", "--block", "16", "--layers", "1", "--heads", "2", "--width", "16", "--lr", "0.01")
WORDS = {"fsdp-gpt": FSDP, "tensor-parallel": ("--lr", "0.02", "--width", "32")}
STEPS = {"fsdp-gpt": 20, "tensor-parallel": 30}
FIGURE = {"fsdp-gpt": "loss", "tensor-parallel": "accuracy"}
KEPT = 10  # step of the checkpoint from which a killed training resumes

FULL_DISK = entries("rank/recipes_sharded", "full_disk")


def run(folder: Path, recipe: str, *words: str, world: int = 2, **more) -> Ran:
    return run_recipe(folder, recipe, "--steps", str(STEPS[recipe]), *WORDS[recipe], *words, world=world, **more)


@pytest.fixture(scope="module", params=WORDS)
def recipe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unbroken(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("unbroken"), recipe, "--checkpoint-every", "0")


def test_it_learns_with_about_half_of_the_parameters_on_each_rank(recipe: str, unbroken: Ran):
    assert unbroken.statuses == [0, 0], unbroken.outputs
    assert sorted(unbroken.losses(1)) == list(range(1, STEPS[recipe] + 1))
    held, whole = unbroken.outputs[1].partition("holds ")[2].split(" parameters")[0].split(" of ")
    assert int(held.replace(",", "")) / int(whole.replace(",", "")) == pytest.approx(0.5, abs=0.1)
    if recipe == "fsdp-gpt":
        assert unbroken.final("loss") < 3.5 < 4.0 < unbroken.losses()[1]
    else:
        assert unbroken.final("accuracy") > 0.8


def test_under_torchrun_it_has_the_same_losses(recipe: str, unbroken: Ran, tmp_path: Path):
    words = ("--steps", str(STEPS[recipe]), *WORDS[recipe], "--checkpoint-every", "0")
    same_under_torchrun(unbroken, tmp_path, recipe, *words)


def test_a_killed_training_resumes_as_if_unbroken_with_four_ranks_too(recipe: str, unbroken: Ran, tmp_path: Path):
    words = ("--checkpoint-every", str(KEPT))
    assert run(tmp_path, recipe, *words, killed_at=KEPT + 5).statuses.count(-9)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{KEPT}"]
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "two" / "checkpoints")
    two = run(tmp_path / "two", recipe, *words)
    assert two.statuses == [0, 0], two.outputs
    left = range(KEPT + 1, STEPS[recipe] + 1)
    assert [two.losses(rank) for rank in (0, 1)] == [
        {step: unbroken.losses(rank)[step] for step in left} for rank in (0, 1)
    ]
    assert two.final(FIGURE[recipe]) == unbroken.final(FIGURE[recipe])

    resumed = run(tmp_path, recipe, *words, world=4)
    assert resumed.statuses == [0] * 4, resumed.outputs
    assert sorted(resumed.losses(3)) == list(left)
    assert resumed.final(FIGURE[recipe]) == pytest.approx(unbroken.final(FIGURE[recipe]), abs=2e-3)

    if recipe == "fsdp-gpt":
        last = tmp_path / "checkpoints" / f"step-{STEPS[recipe]}"
        for name in ("__3_0.distcp", ".metadata"):
            with (last / name).open("r+b") as file:
                file.truncate(100)
            damaged = run(tmp_path, recipe)
            assert damaged.statuses == [1, 1]
            _, line = damaged.outputs[0].splitlines()
            assert line.startswith(f"{last} can't be loaded: rank ")
            assert line.endswith("; delete it, or name another folder")
            assert "Traceback" not in "".join(damaged.outputs)


def test_a_signal_ends_fsdp_after_a_checkpoint_of_the_same_step(tmp_path: Path):
    words = ("--checkpoint-every", "100")
    stopped = run(tmp_path, "fsdp-gpt", *words, killed_at=4, killed_by=signal.SIGTERM)
    assert stopped.statuses == [-signal.SIGTERM] * 2, stopped.outputs
    (kept,) = (tmp_path / "checkpoints").iterdir()
    assert kept.name == f"step-{max(stopped.losses())}"
    assert "Traceback" not in "".join(stopped.outputs)


def test_a_split_model_computes_what_the_whole_one_does(tmp_path: Path):
    ran = run_recipe(tmp_path, "tensor-parallel", "--steps", "1", "--tensor", "4", world=4)
    assert ran.statuses == [0] * 4, ran.outputs
    assert "rank 3: row 0, column 3 of (1, 4): holds " in ran.outputs[3]
    (line,) = [line for line in ran.outputs[0].splitlines() if "differ" in line]
    assert 0 < float(line.removeprefix("rank 0: split and whole model differ by ").split()[0]) < 1e-5


def test_a_full_disk_costs_that_checkpoint_only(tmp_path: Path):
    wrapper = tmp_path / "full.py"
    wrapper.write_text(FULL_DISK)
    (tmp_path / "checkpoints" / "step-of-mine").mkdir(parents=True)
    words = ("--steps", "7", "--checkpoint-every", "2", *FSDP)
    gang = Gang(tmp_path / "attempt", [str(wrapper), "4", str(RECIPES / "fsdp_gpt.py"), *words], 2)
    assert gang.wait() == [0, 0], gang.log(0)
    assert "rank 0: no checkpoint of step 4: rank 0: " in gang.log(0)
    assert gang.log(0).splitlines()[-1].startswith("final loss ")
    assert [line["checkpoint"] for line in gang.metrics(0) if "checkpoint" in line] == [2, 6, 7]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-7", "step-of-mine"]
    assert "Traceback" not in gang.log(0) + gang.log(1)
