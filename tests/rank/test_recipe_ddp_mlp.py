"""The recipe `ddp-mlp`: it learns everywhere, resumes to the last bit, and counts every held-out image once."""

import re
import signal
from pathlib import Path

import pytest
import torch

from rankdeck import checkpoint
from rankdeck.recipes._digits import read_digits
from tests.recipe_ranks import Ran, run_recipe, same_under_torchrun

pytestmark = pytest.mark.slow

RECIPE = "ddp-mlp"
SHORT = ("--epochs", "5")


def test_digits_are_read():
    learned, held_out = read_digits()
    assert learned.images.shape == (1400, 1, 8, 8)
    assert held_out.images.shape == (397, 1, 8, 8)
    for images, labels in (learned, held_out):
        assert (float(images.min()), float(images.max())) == (0.0, 1.0)
        assert set(labels.tolist()) == set(range(10))
        assert len(labels) == len(images)
    # The first image of the source begins 0 0 5 13 9 1 0 0, and is a 0.
    assert (learned.images[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert learned.labels[0] == 0


def test_it_learns_the_same_under_torchrun(tmp_path: Path):
    ours = run_recipe(tmp_path / "rankdeck", RECIPE, *SHORT)
    assert same_under_torchrun(ours, tmp_path / "torchrun", RECIPE, *SHORT).outputs == ours.outputs
    assert ours.final("accuracy") > 0.8
    assert list(ours.losses()) == list(range(1, 5 * 21 + 1))
    assert [line["lr"] for line in ours.metrics[0] if line["step"] in (1, 21, 22) and "lr" in line] == [
        pytest.approx(0.1 / 21),
        0.1,
        0.1,
    ]


TWO_EPOCHS = ("--epochs", "2", "--hidden", "16")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    # Three ranks: a sum of two does not depend on its order.
    return run_recipe(tmp_path_factory.mktemp("unbroken"), RECIPE, *TWO_EPOCHS, world=3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_resumed_training_equals_an_unbroken_one_to_the_last_bit(
    unbroken: Ran, tmp_path: Path, number: signal.Signals
):
    broken = run_recipe(tmp_path, RECIPE, *TWO_EPOCHS, world=3, killed_at=16, killed_by=number)
    assert broken.statuses == [-number] * 3, broken.outputs
    resumed = run_recipe(tmp_path, RECIPE, *TWO_EPOCHS, world=3)
    assert unbroken.statuses == resumed.statuses == [0] * 3, resumed.outputs

    (after,) = map(int, re.findall(r"rank 0 of 3 on cpu: resumes after step (\d+)", resumed.outputs[0]))
    assert after == 14 if number == signal.SIGKILL else after >= 16
    for rank in range(3):
        wanted = {step: loss for step, loss in unbroken.losses(rank).items() if step > after}
        assert resumed.losses(rank) == wanted
    assert resumed.final("accuracy") == unbroken.final("accuracy")


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path):
    words = ("--epochs", "1", "--precision", "float32")
    parts = run_recipe(tmp_path / "parts", RECIPE, *words, "--batch", "8", "--accumulate", "4")
    whole = run_recipe(tmp_path / "whole", RECIPE, *words, "--batch", "32", "--accumulate", "1")
    assert parts.statuses == whole.statuses == [0, 0], parts.outputs
    assert parts.losses() == pytest.approx(whole.losses(), abs=1e-5)


def test_every_held_out_image_counts_once_however_many_ranks_share_them(tmp_path: Path):
    # 397 images in batches of 11: the first rank has one batch more than the second.
    done = run_recipe(tmp_path, RECIPE, "--epochs", "1", "--batch", "11")
    assert done.statuses == [0, 0], done.outputs
    saved = checkpoint.load(tmp_path / "checkpoints")
    assert saved is not None
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU())
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(64, 10))
    model.load_state_dict(saved.state["model"])
    images, labels = read_digits()[1]
    right = int((model(images).argmax(1) == labels).sum())
    assert done.final("accuracy") == round(right / 397, 4)


def test_more_images_than_there_are_is_refused(tmp_path: Path):
    done = run_recipe(tmp_path, RECIPE, "--batch", "1000", launcher="python")
    assert done.statuses == [2]
    assert done.outputs[0] == "ddp-mlp: each rank has 1400 images, and a step takes 2000: make --batch smaller\n"
