"""Runs in a job of a fake PBS: nodes that only its tasks reach, which have no input and whose output goes elsewhere."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.fake_pbs import FakePbs, fake_pbs, fake_pbs_nodes
from tests.support import Deck, complete_lines, entries, from_table, is_alive, kill_hard, wait_until

__all__ = ["fake_pbs", "fake_pbs_nodes"]  # fixtures

COUNT = entries("e2e/pbs", "count")

CALM = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}


@pytest.fixture
def job(fake_pbs: FakePbs, monkeypatch: pytest.MonkeyPatch) -> FakePbs:
    """The test runs in a job with two nodes of two ranks."""
    for name, value in fake_pbs.job().items():
        monkeypatch.setenv(name, value)
    return fake_pbs


@pytest.fixture
def run(job: FakePbs, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile) -> str:
    """Four ranks, which make steps."""
    profile = write_profile(write_script("count.py", COUNT), 2, layout={"pbs": "current"}, launch=CALM)
    run: str = rankdeck.launch(profile)
    wait_steps(rankdeck, run)
    return run


def wait_steps(deck: Deck, run: str, attempt: int = 0) -> None:
    for rank in range(4):
        deck.wait_log(run, rank, b"step 1\n", attempt=attempt)


def last_step(deck: Deck, run: str) -> int:
    return int(deck.status(run)["ranks"][3]["step"] or 0)


def test_a_run_needs_no_ssh_and_leaves_no_key(job: FakePbs, rankdeck: Deck, run: str, work: Path) -> None:
    plan = json.loads((rankdeck.folder(run) / "plan.json").read_text())
    assert [(node["name"], node["transport"]) for node in plan["nodes"]] == [("nodea", "pbs"), ("nodeb", "pbs")]
    assert [rankdeck.log(run, rank).split()[1].decode() for rank in (0, 3)] == [
        f"{job.root}/nodea",
        f"{job.root}/nodeb",
    ]
    assert not list(rankdeck.home.glob(".rankdeck-key-*"))
    wait_until(lambda: "count.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    os.kill(rankdeck.pids(run)[3], signal.SIGKILL)
    rankdeck.wait_status(run, lambda status: status["ranks"][3]["state"] == "failed")
    assert rankdeck("restart", run).returncode == 0
    wait_steps(rankdeck, run, attempt=1)
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")
    wait_until(lambda: not job.processes(), what="nothing is left on the nodes")


def test_a_run_outlives_its_supervisor_and_its_tasks(job: FakePbs, rankdeck: Deck, run: str) -> None:
    pids = rankdeck.pids(run)
    supervisor = rankdeck.supervisor(run)
    kill_hard(supervisor)
    wait_until(lambda: rankdeck.supervisor(run) != supervisor, what="another supervisor")
    step = last_step(rankdeck, run)
    wait_until(lambda: last_step(rankdeck, run) > step, what="more steps")
    bridges = [
        one.pid for one in rankdeck.processes() if "pbs_task.py" in one.command and "--connect" not in one.command
    ]
    for pid in bridges:
        kill_hard(pid)
    step = last_step(rankdeck, run)
    wait_until(lambda: last_step(rankdeck, run) > step + 5, what="more steps over other connections")
    assert rankdeck.pids(run) == pids
    assert all(map(is_alive, pids))
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")


def test_check_asks_every_node(job: FakePbs, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile):
    profile = write_profile(write_script("count.py", COUNT), 2, layout={"pbs": "current"})
    done = rankdeck("check", profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodea" in done.stdout
    assert "nodeb" in done.stdout


@from_table
def test_why_there_is_no_task_is_told(
    nodes: list[str], without: str, words: str, job: FakePbs, rankdeck: Deck, write_script: WriteScript,
    write_profile: WriteProfile, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    job.nodes = tuple(nodes)
    job.job()
    monkeypatch.delenv(without, raising=False)
    profile = write_profile(write_script("count.py", COUNT), 2, layout={"pbs": "current", "transport": "pbs"})
    done = rankdeck("check", profile)
    assert done.returncode != 0
    assert words in " ".join(done.stdout.split())


# --- a job that is submitted ---------------------------------------------------------------------------------------------


@pytest.fixture
def submit(
    fake_pbs: FakePbs, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> Callable[..., str]:
    """Submits two ranks on each of two nodes."""

    def submit(script: str = COUNT, **job: Any) -> str:
        layout = {"pbs": {"nodes": 2, "ranks_per_node": 2, **job}}
        run: str = rankdeck.launch(write_profile(write_script("count.py", script), 2, layout=layout, launch=CALM))
        return run

    return submit


def job_of(deck: Deck, run: str) -> str:
    job: str = json.loads((deck.folder(run) / "job.json").read_text())["job"]
    return job


def test_a_run_waits_for_its_job_trains_in_it_and_the_job_ends_with_it(
    fake_pbs: FakePbs, rankdeck: Deck, submit: Callable[..., str], work: Path
) -> None:
    (fake_pbs.root / "busy").touch()
    run = submit(queue="gpuq", ngpus=4, walltime="1:00:00", account="proj", options=["-l", "filesystems=home"])
    folder, job = rankdeck.folder(run), job_of(rankdeck, run)
    assert fake_pbs.told(job)["options"] == [
        *("-N", "job", "-l", "select=2:ncpus=2:mpiprocs=2:ngpus=4", "-l", "place=scatter", "-q", "gpuq", "-A", "proj"),
        *("-l", "walltime=1:00:00", "-r", "n", "-j", "oe", "-l", "filesystems=home", "-o", f"{folder}/job.out"),
    ]
    assert rankdeck.status(run)["state"] == "queued"
    assert f"job {job} waits: Not Running: Insufficient amount of resource: ncpus" in rankdeck("status", run).stdout
    assert not rankdeck.processes(), "nothing of ours lives on the login node"
    (fake_pbs.root / "busy").unlink()
    wait_steps(rankdeck, run)
    status = rankdeck.wait_status(run, lambda status: status["state"] == "running")
    assert [rank["node"] for rank in status["ranks"]] == ["nodea", "nodea", "nodeb", "nodeb"]
    assert rankdeck("kill", run, "--rank", "3").returncode == 0
    rankdeck.wait_status(run, lambda status: status["ranks"][3]["state"] == "failed")
    assert rankdeck("restart", run).returncode == 0
    wait_steps(rankdeck, run, attempt=1)
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")
    wait_until(lambda: fake_pbs.told(job)["job_state"] == "F", what="the job has ended")
    assert fake_pbs.told(job)["Exit_status"] == 0
    assert not list((fake_pbs.root / "home").glob(".rankdeck-key-*"))


def test_a_run_that_waits_is_cancelled_with_its_job(fake_pbs: FakePbs, rankdeck: Deck, submit: Callable[..., str]):
    (fake_pbs.root / "busy").touch()
    run = submit()
    assert rankdeck("stop", run).stdout == f"PBS's job {job_of(rankdeck, run)} is cancelled\n"
    assert rankdeck.status(run)["state"] == "stopped"
    assert fake_pbs.told(job_of(rankdeck, run))["job_state"] == "F"


def test_a_run_that_is_stopped_ends_its_job(fake_pbs: FakePbs, rankdeck: Deck, submit: Callable[..., str]) -> None:
    run = submit()
    wait_steps(rankdeck, run)
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: fake_pbs.told(job_of(rankdeck, run))["job_state"] == "F", what="the job has ended")


def test_a_job_that_others_delete_stops_its_run_in_words_and_leaves_nothing(
    fake_pbs: FakePbs, rankdeck: Deck, submit: Callable[..., str]
) -> None:
    """The signal reaches the job's own session only."""
    run = submit()
    wait_steps(rankdeck, run)
    subprocess.run(["qdel", job_of(rankdeck, run)], check=True)
    rankdeck.wait_state(run, "stopped")
    assert "stopped by PBS, which ends its job" in rankdeck("status", run).stdout
    wait_until(lambda: not fake_pbs.processes(), what="nothing is left on the nodes")


def test_what_pbs_refuses_is_told_before_anything_is_left(fake_pbs, rankdeck, write_script, write_profile):
    layout = {"pbs": {"nodes": 2, "ranks_per_node": 2, "queue": "nonesuch"}}
    profile = write_profile(write_script("count.py", COUNT), 2, layout=layout)
    plan = rankdeck("plan", profile).stdout
    assert "qsub -N job -l select=2:ncpus=2:mpiprocs=2 -l place=scatter -q nonesuch" in " ".join(plan.split())
    assert "in-job" in plan
    assert "PBS judges the job when it is submitted" in rankdeck("check", profile, "--json").stdout
    done = rankdeck("launch", "--detach", profile)
    assert done.returncode != 0
    assert "qsub fails: Unknown queue" in done.stderr
    assert not list((rankdeck.home / "runs").iterdir())


GO_ON = entries("e2e/pbs", "go_on")


def test_a_run_is_stopped_before_the_limit_and_goes_on_in_another_job(fake_pbs, rankdeck, submit: Callable[..., str]):
    run = submit(GO_ON, walltime="0:50", warn=30, on_limit="requeue")
    first = job_of(rankdeck, run)
    rankdeck.wait_state(run, "succeeded")
    assert job_of(rankdeck, run) != first
    assert rankdeck.status(run)["attempt"] >= 1
    for attempt in range(rankdeck.status(run)["attempt"]):
        before = complete_lines(rankdeck.log(run, 3, attempt=attempt)).split()
        after = complete_lines(rankdeck.log(run, 3, attempt=attempt + 1)).split()
        if before and after:
            assert int(after[1]) == int(before[-1]) + 1, "no step is lost"
