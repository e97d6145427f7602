"""Programs that know nothing of rankdeck: the same result as under torchrun, and numbers and curves as their users expect them."""

import json
import subprocess

import pytest

from engine.runs.foreign.event_files import read_new
from tests.programs.conftest import SCRIPTS, Programs, Ran
from tests.support import PATIENCE, ROOT


def killed_and_restarted(programs: Programs, script: str, *args: str, rank: int, step: int) -> Ran:
    """Runs a program that is killed once, and starts again from its last checkpoint; under torchrun nobody kills it."""
    ran = programs.beside_torchrun(script, *args, on_failure="restart", only_here=("--fatal_step", str(step)))
    assert ran.status["attempt"] == 1
    cause = json.loads(programs.rankdeck("diagnose", ran.status["run"], "--json").stdout)
    assert (cause["attempt"], cause["verdict"]["cause"], cause["verdict"]["rank"]) == (0, "E1", rank)
    assert ran.summary["loss"] > 0
    assert ran.summary["metrics"]["throughput"] > 0
    return ran


def test_lightning(programs):
    ran = killed_and_restarted(programs, "lightning_fit.py", rank=1, step=50)
    assert (ran.summary["step"], ran.status["epoch_step"], ran.status["epoch_steps"]) == (60, 20, 20)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert {1, 45, 60} <= ran.steps("loss")


def test_fabric(programs):
    ran = killed_and_restarted(programs, "fabric_loop.py", rank=1, step=50)
    assert ran.summary["step"] == 60
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert set(range(5, 61, 5)) <= ran.steps("loss")


def test_accelerate(programs):
    ran = killed_and_restarted(programs, "accelerate_loop.py", rank=0, step=70)
    assert (ran.summary["step"], ran.summary["steps"]) == (90, 90)
    assert min(ran.steps("loss")) <= 30
    assert max(ran.steps("loss")) == 90
    assert list(programs.work.glob("**/checkpoints/*.new")) == [], (
        "each rank's part is there before the folder gets its name"
    )


def test_accelerate_in_an_elastic_training(programs):
    unbroken = programs.ended(programs.start("accelerate_rejoin.py", "-1"))
    run = programs.start("accelerate_rejoin.py", "30", on_failure="restart")
    ran = programs.ended(run)
    assert ran.final == unbroken.final
    assert (ran.status["attempt"], ran.summary["step"]) == (0, 60)
    spawned = [event["rank"] for event in programs.rankdeck.journal(run) if event["event"] == "RankSpawned"]
    assert sorted(spawned) == [0, 1, 1]  # rank 0 kept its process


def test_deepspeed(programs):
    ran = killed_and_restarted(programs, "deepspeed_loop.py", rank=1, step=50)
    assert (ran.summary["step"], ran.summary["steps"]) == (60, 60)
    assert {5, 45, 60} <= ran.steps("loss")


TRAINER = (
    "--output_dir", "out", "--use_cpu", "--ddp_backend", "gloo", "--report_to", "none", "--max_steps", "40", "--logging_steps", "4",
    "--eval_strategy", "steps", "--eval_steps", "20", "--save_steps", "20",
)  # fmt: skip


def test_transformers_trainer(programs):
    ran = killed_and_restarted(programs, "hf_trainer.py", *TRAINER, rank=1, step=30)
    assert (ran.summary["step"], ran.summary["steps"]) == (40, 40)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert {"lr", "grad_norm"} <= set(ran.curves)
    assert min(ran.steps("loss")) <= 12
    assert max(ran.steps("loss")) >= 32


def test_a_trainer_that_prints_nothing(programs):
    ran = killed_and_restarted(programs, "hf_trainer.py", *TRAINER, "--silent", rank=1, step=30)
    assert ran.summary["step"] == 40
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert {"lr", "grad_norm"} <= set(ran.curves)
    assert set(range(4, 41, 4)) <= ran.steps("loss")


def test_tqdm_nested_over_epochs(programs):
    ran = programs.beside_torchrun("tqdm_epochs.py")
    assert (ran.summary["step"], ran.summary["steps"], ran.status["epoch_step"]) == (120, 120, 40)
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert ran.summary["metrics"]["throughput"] > 0
    assert min(ran.steps("loss")) <= 30
    assert max(ran.steps("loss")) >= 100


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_where_the_output_is_silent(programs, tracker):
    ran = programs.beside_torchrun("silent_loop.py", "--tracker", tracker)
    assert (ran.summary["step"], ran.summary["loss"]) == (200, pytest.approx(float(ran.final.split()[-1]), rel=0.01))
    assert ran.status["metrics"]["lr"] == pytest.approx(0.01)
    assert ran.summary["metrics"]["throughput"] > 0
    assert set(range(5, 201, 5)) <= ran.steps("loss")


def test_lightning_with_rich_and_tensorboard(programs):
    ran = programs.ended(programs.start("lightning_fit.py", "--rich"))
    assert ran.summary["step"] == 59, "counted from 0, as the logger does"
    assert ran.summary["loss"] > 0
    assert ran.status["metrics"]["val_loss"] == pytest.approx(float(ran.final.split()[-1]), rel=0.01)
    assert {4, 59} <= ran.steps("loss")


def test_the_real_writer_of_event_files_is_read(programs):
    subprocess.run([programs.python, SCRIPTS / "write_events.py", "events"], check=True, timeout=PATIENCE)
    (path,) = programs.work.glob("events/*")
    found, _ = read_new(path, 0)
    recorded, _ = read_new(ROOT / "tests/data/event_files/tensorboard", 0)
    assert repr(found) == repr(recorded)
