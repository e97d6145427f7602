"""Programs that know nothing of rankdeck: the same result as under torchrun, and numbers and curves as their users expect them."""

from __future__ import annotations

import json

import pytest


def test_lightning(programs):
    ran = programs.beside_torchrun("lightning_fit.py")
    assert (ran.summary["step"], ran.status["epoch_step"], ran.status["epoch_steps"]) == (60, 20, 20)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert ran.summary["loss"] > 0
    assert ran.summary["metrics"]["throughput"] > 0
    assert ran.spans("loss", 1, 60)


def test_accelerate(programs):
    ran = programs.beside_torchrun("accelerate_loop.py")
    assert (ran.summary["step"], ran.summary["steps"]) == (90, 90)
    assert ran.summary["loss"] > 0
    assert ran.summary["metrics"]["throughput"] > 0
    assert ran.spans("loss", 30, 90)


TRAINER = (
    "--output_dir", "out", "--use_cpu", "--ddp_backend", "gloo", "--report_to", "none", "--max_steps", "40", "--logging_steps", "4",
    "--eval_strategy", "steps", "--eval_steps", "20", "--save_steps", "20",
)  # fmt: skip


def test_trainer_goes_on_from_its_checkpoint_after_a_kill(programs):
    ran = programs.beside_torchrun("hf_trainer.py", *TRAINER, on_failure="restart", only_here=("--fatal_step", "30"))
    assert (ran.status["attempt"], ran.summary["step"], ran.summary["steps"]) == (1, 40, 40)
    cause = json.loads(programs.rankdeck("diagnose", ran.status["run"], "--json").stdout)
    assert (cause["attempt"], cause["verdict"]["cause"], cause["verdict"]["rank"]) == (0, "E1", 1)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert ran.summary["metrics"]["throughput"] > 0
    assert {"lr", "grad_norm"} <= set(ran.curves)
    steps = [step for step, _ in ran.curves["loss"]]
    assert min(steps) <= 12
    assert max(steps) >= 32


def test_tqdm_nested_over_epochs(programs):
    ran = programs.beside_torchrun("tqdm_epochs.py")
    assert (ran.summary["step"], ran.summary["steps"], ran.status["epoch_step"]) == (120, 120, 40)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert ran.summary["metrics"]["throughput"] > 0
    assert ran.spans("loss", 30, 100)


def test_tensorboard_where_the_output_is_silent(programs):
    ran = programs.beside_torchrun("silent_loop.py")
    assert (ran.summary["step"], ran.summary["loss"]) == (200, pytest.approx(float(ran.final.split()[-1])))
    assert ran.status["metrics"]["lr"] == pytest.approx(0.01)
    assert ran.summary["metrics"]["throughput"] > 0
    assert ran.spans("loss", 5, 200)


def test_lightning_with_rich_and_tensorboard(programs):
    ran = programs.ended(programs.start("lightning_fit.py", "--rich"))
    assert ran.summary["step"] == 59, "counted from 0, as the logger does"
    assert ran.summary["loss"] > 0
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert {4, 59} <= {step for step, _ in ran.curves["loss"]}
