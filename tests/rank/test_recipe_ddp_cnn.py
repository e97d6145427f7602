"""The recipe `ddp-cnn`: batch normalization over ranks, saved weights, workers of the DataLoader, and resuming."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.recipe_ranks import Gang, resumed, run_recipe, same_under_torchrun, start_recipe
from tests.support import entries

pytestmark = pytest.mark.slow

RECIPE = "ddp-cnn"
SHORT = ("--epochs", "3")

BATCHES = entries("rank/recipe_ddp_cnn", "batches")


def test_synchronized_batch_normalization_is_that_of_the_whole_batch(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(BATCHES)
    gang = Gang(tmp_path / "run", [str(script)], 2)
    assert gang.wait() == [0, 0], gang.log(0) + gang.log(1)
    assert [gang.log(rank) for rank in (0, 1)] == ["equal\n", "equal\n"]


def test_it_learns_the_same_under_torchrun_and_with_workers(tmp_path: Path):
    ours = run_recipe(tmp_path / "rankdeck", RECIPE, *SHORT, "--workers", "2")
    same_under_torchrun(ours, tmp_path / "torchrun", RECIPE, *SHORT)
    assert ours.final("accuracy") > 0.8
    assert list(ours.losses()) == list(range(1, 3 * 43 + 1))
    rates = list(ours.losses(name="lr").values())
    assert rates == [*sorted(rates[:43]), *sorted(rates[43:], reverse=True)]
    assert max(rates) == pytest.approx(0.1)


def test_a_killed_training_resumes_and_equals_an_unbroken_one_to_the_last_bit(tmp_path: Path):
    words = ("--epochs", "2", "--width", "4", "--batch", "32", "--sync-batchnorm")
    unbroken = run_recipe(tmp_path / "unbroken", RECIPE, *words, world=3)
    again = resumed(unbroken, tmp_path / "broken", RECIPE, *words, killed_at=20, after=14)
    assert "rank 2 of 3 on cpu: resumes after step 14\n" in again.outputs[2]
    ours, theirs = (
        torch.load(tmp_path / run / "checkpoints/weights.pt", weights_only=True) for run in ("broken", "unbroken")
    )
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])


def test_an_interrupt_that_reaches_workers_too_leaves_a_checkpoint_and_no_traceback(tmp_path: Path):
    gang = start_recipe(tmp_path, RECIPE, "--epochs", "1000", "--width", "2", "--workers", "1")
    try:
        gang.wait_for(lambda: len(gang.metrics(1)) >= 3)
        for process in gang.ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended already, by the signal to the other
                os.killpg(process.pid, signal.SIGINT)
        assert gang.wait() == [-signal.SIGINT, -signal.SIGINT], gang.log(0)
    finally:
        gang.end()
    (last,) = {max(gang.losses(rank)) for rank in (0, 1)}
    assert (tmp_path / "checkpoints" / f"step-{last}.pt").exists()
    for rank in (0, 1):
        assert re.fullmatch(
            rf"rank {rank} of 2 on cpu: starts\n(epoch .*\n)*rank {rank}: stopped by a signal after step {last}\n",
            gang.log(rank),
        )


def test_weights_of_an_earlier_run_can_be_the_beginning(tmp_path: Path):
    first = run_recipe(tmp_path / "first", RECIPE, "--epochs", "2", launcher="python")
    assert first.statuses == [0], first.outputs
    weights = tmp_path / "first/attempt_0/checkpoints/ddp-cnn/weights.pt"
    second = run_recipe(tmp_path / "second", RECIPE, "--epochs", "1", "--weights", str(weights))
    assert second.statuses == [0, 0], second.outputs
    assert second.losses()[1] < first.losses()[1] / 2

    weights.write_bytes(b"PK\x03\x04")
    for path, status, said in (
        (str(weights), 1, f"{weights} can't be read as a checkpoint ("),
        (f"{tmp_path}/none", 2, f"ddp-cnn: --weights {tmp_path}/none: rank 0 finds no such file\n"),
    ):
        refused = run_recipe(tmp_path / "refused", RECIPE, "--weights", path)
        assert refused.statuses == [status] * 2
        assert all(output.startswith(said) for output in refused.outputs)
        assert "Traceback" not in refused.outputs[0]
