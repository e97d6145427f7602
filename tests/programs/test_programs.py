"""Programs that know nothing of rankdeck: the same result as under torchrun, and numbers and curves as their users expect them."""

from __future__ import annotations

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
