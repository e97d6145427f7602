"""Runs that are submitted as jobs: they wait, start with nobody there, and are reached from a login node through Slurm only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm
from tests.support import Deck, wait_until

COUNT = """
import os, rankdeck, socket, time
print("up", socket.gethostname(), os.environ["LOCAL_RANK"], os.environ.get("SLURM_GPUS_ON_NODE"), flush=True)
step = 0
while step < 5 or not os.path.exists("finish"):
    step += 1
    rankdeck.log(step=step, loss=1 / step)
    print("line", step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def launch(slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile) -> Callable[..., str]:
    """Submits two ranks on each of two nodes."""

    def launch(**job: Any) -> str:
        layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "gres": "gpu:2", **job}}
        ladder = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
        run: str = rankdeck.launch(write_profile(write_script("count.py", COUNT), 2, layout=layout, launch=ladder))
        return run

    return launch


def job_of(deck: Deck, run: str) -> str:
    job: str = json.loads((deck.folder(run) / "job.json").read_text())["job"]
    return job


def wait_up(deck: Deck, run: str) -> None:
    for rank in range(4):
        deck.wait_log(run, rank, b"line 1\n")


def test_a_run_waits_for_its_job_starts_with_nobody_there_and_ends_it(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], work: Path
) -> None:
    with slurm.job("--export=NONE") as other:
        run = launch()
        status = rankdeck.status(run)
        assert status["state"] == "queued"
        wait_until(lambda: "Resources" in rankdeck("ps").stdout or "Priority" in rankdeck("ps").stdout, what="a reason")
        assert not rankdeck.processes(), "nothing of ours lives on the login node"
        slurm.run("scancel", other)
        wait_up(rankdeck, run)
    assert rankdeck.log(run, 3).split()[:4] == [b"up", b"sl2", b"1", b"2"]


def test_a_running_job_is_reached_and_stopped_from_the_login_node(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    run = launch()
    wait_up(rankdeck, run)
    status = rankdeck.wait_status(run, lambda status: status["state"] == "running")
    assert [rank["node"] for rank in status["ranks"]] == ["sl1", "sl1", "sl2", "sl2"]
    assert "count.py" in rankdeck("stacks", run).stdout
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: slurm.state(job_of(rankdeck, run)) == "COMPLETED", what="the job has ended")


def test_a_run_that_waits_is_cancelled_with_its_job(slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]) -> None:
    with slurm.job("--export=NONE"):
        run = launch()
        assert rankdeck("stacks", run).returncode != 0
        assert rankdeck("stop", run).stdout == f"Slurm's job {job_of(rankdeck, run)} is cancelled\n"
        assert rankdeck.status(run)["state"] == "stopped"
        assert slurm.state(job_of(rankdeck, run)) == "CANCELLED"


def test_a_job_that_others_cancel_ends_its_run_in_words(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    run = launch()
    wait_up(rankdeck, run)
    slurm.run("scancel", job_of(rankdeck, run))
    wait_until(lambda: "failed" in rankdeck("ps", "--all").stdout, what="ps knows the end")
    assert f"Slurm's job {job_of(rankdeck, run)} was cancelled" in rankdeck("status", run).stdout


def test_what_slurm_refuses_is_told_before_anything_is_left(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "partition": "nonesuch"}}
    profile = write_profile(write_script("count.py", COUNT), 2, layout=layout)
    assert "--partition=nonesuch" in rankdeck("plan", profile).stdout
    done = rankdeck("check", profile)
    assert done.returncode != 0
    assert "Invalid partition name" in done.stdout
    done = rankdeck("launch", "--detach", profile)
    assert done.returncode != 0
    assert "Invalid partition name" in done.stderr
    assert not list((rankdeck.home / "runs").iterdir())


def test_check_says_when_a_job_would_start_and_submits_none(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2}}
    done = rankdeck("check", write_profile(write_script("count.py", COUNT), 2, layout=layout), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to start at" in done.stdout
    assert not slurm.run("squeue", "-h")


def test_a_run_is_stopped_before_its_job_reaches_the_time_limit(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    run = launch(time="10", warn=60)
    wait_up(rankdeck, run)
    slurm.run("scancel", "--batch", "--signal=USR1", job_of(rankdeck, run))  # as Slurm does, a minute before the limit
    rankdeck.wait_state(run, "stopped")
    assert "stopped by the time limit of its job" in rankdeck("status", run).stdout
    wait_until(lambda: slurm.state(job_of(rankdeck, run)) == "COMPLETED", what="the job has ended")
