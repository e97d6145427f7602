"""Runs that are submitted as jobs: they wait, start with nobody there, and are reached from a login node through Slurm only."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm
from tests.support import Deck, entries, wait_until

COUNT = entries("slurm/submitted", "count")


@pytest.fixture
def launch(slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile) -> Callable[..., str]:
    """Submits two ranks on each of two nodes."""

    def launch(**job: Any) -> str:
        layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "gres": "gpu:2", **job}}
        ladder = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
        script, backend = write_script("count.py", COUNT), {"name": "auto"}
        run: str = rankdeck.launch(write_profile(script, 2, layout=layout, launch=ladder, backend=backend))
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
    run = launch(time="20:00")
    wait_up(rankdeck, run)
    status = rankdeck.wait_status(run, lambda status: status["state"] == "running")
    assert [rank["node"] for rank in status["ranks"]] == ["sl1", "sl1", "sl2", "sl2"]
    job = rankdeck.wait_status(run, lambda status: status["job"] is not None)["job"]
    limit = slurm.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--format=%e", f"--jobs={job['job']}")
    assert (job["job"], job["partition"], job["ends_at"]) == (job_of(rankdeck, run), "main", float(limit))
    assert f"job {job['job']} · main · ends in " in rankdeck("ps").stdout
    assert f"job {job['job']} · main · ends in " in rankdeck("status", run).stdout
    plan = json.loads((rankdeck.folder(run) / "plan.json").read_text())
    assert (plan["backend"]["name"], plan["backend_is_auto"], plan["launch"]["hold_for"]) == ("gloo", True, 900)
    wait_until(lambda: "count.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: slurm.state(job_of(rankdeck, run)) == "COMPLETED", what="the job has ended")


def test_a_sweep_is_a_set_of_jobs_that_wait_for_each_other(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 1, "ranks_per_node": 1}}
    profile = write_profile(write_script("values.py", "import sys\nprint('acc', sys.argv[-1])"), 1, layout=layout)
    with slurm.job("--export=NONE") as other:
        words = ("sweep", profile, "--arg", "lr=1,2,3", "--parallel", "2", "--name", "mine", "--detach")
        assert rankdeck(*words).stdout == "mine\n"
        runs = json.loads(rankdeck("runs", "--sweep", "mine", "--json").stdout)
        jobs = {run["swept"]["values"]["lr"]: job_of(rankdeck, run["run"]) for run in runs}
        waits = slurm.run("squeue", "--noheader", "--format=%E", f"--jobs={jobs['3']}")
        assert waits.strip().startswith(f"afterany:{jobs['1']}")
        assert [run["state"] for run in runs] == ["queued"] * 3
        slurm.run("scancel", other)
        for run in runs:
            assert rankdeck.wait_state(run["run"], "succeeded")["swept"]["sweep"] == "mine"
    done = rankdeck("sweep", profile, "--arg", "lr=4,5", "--name", "theirs")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [["lr", "4"], ["lr", "5"]]


def test_ranks_on_a_login_node_are_warned_of(slurm: Slurm, rankdeck: Deck, write_script: WriteScript) -> None:
    script = str(write_script("hello.py", "print('hello')"))
    done = rankdeck("run", "-n", "1", script)
    assert done.returncode == 0
    assert "is a login node of Slurm, and ranks would run on it; submit a job: rankdeck run --slurm" in done.stderr
    done = rankdeck("run", "--slurm", "-n", "1", script)
    assert (done.returncode, done.stdout.splitlines()[1:], "login node" in done.stderr) == (
        0,
        ["[r0 sl1] hello"],
        False,
    )
    done = rankdeck("run", "-n", "1", script, env={"SLURM_JOB_ID": "1"})  # in a job that salloc has made
    assert (done.returncode, "login node" in done.stderr) == (0, False)


def test_status_comes_from_files_while_no_controller_answers(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], work: Path
) -> None:
    run = launch()
    wait_up(rankdeck, run)
    rankdeck.wait_status(run, lambda status: status["as_of"] is not None)
    slurm.stop_controller()
    try:
        status = rankdeck.status(run)
        assert (status["state"], [rank["node"] for rank in status["ranks"]]) == ("running", ["sl1"] * 2 + ["sl2"] * 2)

        def later() -> str:
            """What the run does as after a minute of silence, in which its supervisor writes nothing."""
            os.utime(rankdeck.folder(run) / "summary.json", (0, 0))
            doing: str = rankdeck.status(run)["doing"]
            return doing

        wait_until(lambda: "Unable to contact slurm controller" in later(), what="the silence of the controller")
        done = rankdeck("stop", run)
        assert done.returncode != 0
        assert "Slurm's controller does not answer" in done.stderr
    finally:
        slurm.start_controller()
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")


def test_a_run_that_waits_is_cancelled_with_its_job(slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]) -> None:
    with slurm.job("--export=NONE"):
        run = launch()
        assert rankdeck("stacks", run).returncode != 0
        assert rankdeck("stop", run).stdout == f"Slurm's job {job_of(rankdeck, run)} is cancelled\n"
        assert rankdeck.status(run)["state"] == "stopped"
        assert slurm.state(job_of(rankdeck, run)) == "CANCELLED"


def test_a_folder_of_runs_that_nodes_do_not_see_is_told(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deck = Deck(slurm.unshared / "home")
    monkeypatch.setenv("RANKDECK_HOME", str(deck.home))
    monkeypatch.setattr(rankdeck, "home", deck.home)
    run = launch()
    wait_until(lambda: deck.status(run)["state"] == "failed", what="status knows the end")
    said = " ".join(deck("status", run).stdout.split())
    assert (
        f"has failed: its first node does not see {deck.folder(run)}; set RANKDECK_HOME to a folder that login" in said
    )


def test_what_slurm_refuses_is_told_before_anything_is_left(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2, "partition": "nonesuch"}}
    profile = write_profile(COUNT, 2, layout=layout)
    assert "--partition=nonesuch" in rankdeck("plan", profile).stdout
    done = rankdeck("check", profile)
    assert done.returncode != 0
    assert "Invalid partition name" in done.stdout
    done = rankdeck("launch", "--detach", profile)
    assert done.returncode != 0
    assert "Invalid partition name" in done.stderr
    assert not list((rankdeck.home / "runs").iterdir())


def test_check_says_when_a_job_would_start_and_submits_none(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 2}}
    done = rankdeck("check", write_profile(COUNT, 2, layout=layout), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to start at" in done.stdout
    assert not slurm.run("squeue", "-h")


def test_nodes_shows_what_is_free(slurm: Slurm, rankdeck: Deck) -> None:
    job = slurm.run("sbatch", "--parsable", "--gres=gpu:1", "--nodelist=sl2", "--output=/dev/null", "--wrap=sleep 600")
    try:
        wait_until(lambda: slurm.state(job) == "RUNNING", what="the job runs")
        found = {one["name"]: one for one in json.loads(rankdeck("nodes", "--json").stdout)}
        text = rankdeck("nodes").stdout
    finally:
        slurm.cancel_everything()
    main = found["main"]
    assert (main["default"], main["nodes"], main["free"]) == (True, 2, 1)
    assert (main["gpus"], main["cpus"], main["free_cpus"]) == (4, 8, 4)
    assert set(found) == {"graced", "main", "short", "urgent"}
    assert "main (default)" in text


def test_nodes_without_slurm_says_so(rankdeck: Deck, slurm: Slurm, tmp_path: Path) -> None:
    done = rankdeck("nodes", env={"PATH": str(tmp_path)})
    assert done.returncode != 0
    assert "sinfo can't be run" in done.stderr


def test_a_run_is_stopped_before_its_job_reaches_the_time_limit(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    run = launch(time="10", warn=60)
    wait_up(rankdeck, run)
    slurm.run("scancel", "--batch", "--signal=USR1", job_of(rankdeck, run))  # as Slurm does, a minute before the limit
    rankdeck.wait_state(run, "stopped")
    assert "stopped by the time limit of its job" in rankdeck("status", run).stdout
    wait_until(lambda: slurm.state(job_of(rankdeck, run)) == "COMPLETED", what="the job has ended")


# --- one run over several jobs -------------------------------------------------------------------------------------------

GO_ON = entries("slurm/submitted", "go_on")  # a script that writes a checkpoint at SIGTERM, and goes on from there


@pytest.fixture
def launch_again(slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile) -> Callable[..., str]:
    """Submits a run that goes on in another job when its time is up."""

    def launch(script: str = GO_ON, nodes: int = 2, **job: Any) -> str:
        layout = {
            "slurm": {"nodes": nodes, "ranks_per_node": 2, "time": "10", "warn": 60, "on_limit": "requeue", **job}
        }
        ladder = {"stop_ladder": [["SIGTERM", 20], ["SIGKILL", 5]]}
        run: str = rankdeck.launch(write_profile(script, 2, layout=layout, launch=ladder))
        return run

    return launch


def warn(slurm: Slurm, job: str) -> None:
    """Sends a job the signal that Slurm sends some time before its limit."""
    slurm.run("scancel", "--batch", "--signal=USR1", job)


def wait_next(deck: Deck, run: str, job: str) -> str:
    """Waits until a run has gone on in another job; gives its number."""
    wait_until(lambda: job_of(deck, run) != job, what=f"the job after {job} has begun")
    return job_of(deck, run)


def ended_well(slurm: Slurm, job: str) -> bool:
    return slurm.state(job) == "COMPLETED"


def steps_of(deck: Deck, run: str, attempt: int, rank: int) -> list[int]:
    whole = deck.log(run, rank, attempt=attempt).decode().rpartition("\n")[0]  # Python may write a line in pieces
    words = [line.split() for line in whole.splitlines()]
    return [int(line[1]) for line in words if line[:1] == ["step"]]


def wait_steps(deck: Deck, run: str, attempt: int, ranks: int) -> None:
    """Waits until each rank of an attempt has made some steps."""
    for rank in range(ranks):
        wait_until(partial(steps_of, deck, run, attempt, rank), what=f"steps of rank {rank} in attempt {attempt}")


def test_a_run_goes_on_over_three_jobs_without_losing_a_step(
    slurm: Slurm, rankdeck: Deck, launch_again: Callable[..., str], work: Path
) -> None:
    run = launch_again()
    for attempt in range(2):
        wait_steps(rankdeck, run, attempt, ranks=4)
        job = job_of(rankdeck, run)
        warn(slurm, job)
        wait_next(rankdeck, run, job)
        wait_until(partial(ended_well, slurm, job), what="the earlier job has ended well")
    wait_steps(rankdeck, run, 2, ranks=4)
    (work / "finish").touch()
    status = rankdeck.wait_state(run, "succeeded")
    assert status["attempt"] == 2
    for rank in range(4):
        steps = [step for attempt in range(3) for step in steps_of(rankdeck, run, attempt, rank)]
        assert steps == list(range(1, steps[-1] + 1)), "each step was made once"


def test_a_run_that_waits_for_its_next_job_says_so_and_can_be_stopped(
    slurm: Slurm, rankdeck: Deck, launch_again: Callable[..., str]
) -> None:
    run = launch_again()
    wait_steps(rankdeck, run, 0, ranks=4)
    job = job_of(rankdeck, run)
    slurm.run("scontrol", "update", "partitionname=main", "state=down")  # where no job starts
    try:
        warn(slurm, job)
        rankdeck.wait_state(run, "queued")
        wait_until(partial(ended_well, slurm, job), what="the earlier job has ended")
        wait_until(lambda: not rankdeck.processes(), what="nothing of the run is left")
        rankdeck.wait_status(run, lambda status: "its partition is down" in status["doing"])
        assert "its partition is down" in rankdeck("ps").stdout
        done = rankdeck("restart", run)
        assert done.returncode != 0
        assert "has no ranks yet" in done.stderr
        assert "is cancelled" in rankdeck("stop", run).stdout
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=up")
    assert rankdeck.status(run)["state"] == "stopped"
    wait_until(lambda: not slurm.run("squeue", "-h"), what="no job is left")


def test_a_run_goes_on_on_another_node(slurm: Slurm, rankdeck: Deck, launch_again: Callable[..., str], work: Path):
    run = launch_again(nodes=1)
    wait_steps(rankdeck, run, 0, ranks=2)
    assert b"on sl1" in rankdeck.log(run, 0)
    slurm.run("scontrol", "update", "nodename=sl1", "state=drain", "reason=test")
    job = job_of(rankdeck, run)
    warn(slurm, job)
    wait_next(rankdeck, run, job)
    wait_steps(rankdeck, run, 1, ranks=2)
    assert b"on sl2" in rankdeck.log(run, 0, attempt=1)
    assert {rank["node"] for rank in rankdeck.status(run)["ranks"]} == {"sl2"}
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")


def test_a_run_that_makes_no_step_is_not_submitted_for_ever(
    slurm: Slurm, rankdeck: Deck, launch_again: Callable[..., str]
) -> None:
    run = launch_again("import signal\nprint('up', flush=True)\nwhile True: signal.pause()")
    job = job_of(rankdeck, run)
    wait_until(lambda: all(rankdeck.log(run, rank) for rank in range(4)), what="all ranks are up")
    warn(slurm, job)
    job = wait_next(rankdeck, run, job)
    wait_until(lambda: all(rankdeck.log(run, rank, attempt=1) for rank in range(4)), what="all ranks are up again")
    warn(slurm, job)
    rankdeck.wait_state(run, "stopped")
    assert "not submitted again: 2 jobs in a row made no step" in rankdeck("status", run).stdout
    wait_until(lambda: not slurm.run("squeue", "-h"), what="no job is left")


def test_a_run_whose_job_was_cancelled_is_restarted_in_another_job_with_its_checkpoints(
    slurm: Slurm, rankdeck: Deck, launch_again: Callable[..., str], work: Path
) -> None:
    run = launch_again(nodes=1, on_limit="stop", warn=0)
    wait_steps(rankdeck, run, 0, ranks=2)
    job = job_of(rankdeck, run)
    slurm.run("scancel", job)
    rankdeck.wait_state(run, "failed")
    assert "rankdeck restart" in rankdeck("status", run).stdout
    slurm.run("scontrol", "update", "partitionname=main", "state=down")  # where no job starts
    try:
        assert "continues the run as its next attempt" in rankdeck("restart", run).stdout
        assert rankdeck.status(run)["state"] == "queued"
        assert "its partition is down" in rankdeck("ps").stdout
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=up")
    wait_next(rankdeck, run, job)
    wait_steps(rankdeck, run, 1, ranks=2)
    (work / "finish").touch()
    assert rankdeck.wait_state(run, "succeeded")["attempt"] == 1
