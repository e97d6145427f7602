"""What sites do around a job: they print before each task, and let people write their own batch files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.slurm.lab import Slurm
from tests.support import PATIENCE, Deck, entries, wait_gone, wait_until

GO_ON = entries("slurm/submitted", "go_on")


@pytest.fixture
def welcome(slurm: Slurm) -> Iterator[None]:
    """Each task of each step begins with lines of the site."""
    said = slurm.prolog.with_name("said")
    said.write_text("print Welcome to this cluster\nprint " + "quota " * 20_000 + "\n")
    yield
    said.unlink()


@pytest.fixture
def batch(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, work: Path
) -> Callable[..., str]:
    """Submits a batch file of the user's own, in which some lines launch a profile `P`. Gives the job."""
    ladder = {"stop_ladder": [["SIGTERM", 20], ["SIGKILL", 5]]}
    profile = write_profile(write_script("go_on.py", GO_ON), 2, layout={"slurm": "current"}, launch=ladder)

    def batch(lines: str, *options: str, nodes: int = 1) -> str:
        words = " ".join([*rankdeck.argv, "launch", str(profile)])
        file = work / "own.sh"
        file.write_text(f"#!/bin/sh\n#SBATCH --ntasks-per-node=2\n{lines.replace('LAUNCH', words)}\n")
        where = [f"--nodes={nodes}", f"--output={work}/own.out", "--open-mode=append"]
        argv = ["sbatch", "--parsable", *where, *options, str(file)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.strip()

    return batch


def runs(deck: Deck) -> list[str]:
    """The runs that have begun."""
    return sorted(path.parent.name for path in (deck.home / "runs").glob("*/journal.jsonl"))


def the_run(deck: Deck) -> str:
    wait_until(lambda: runs(deck), what="a run has begun")
    (run,) = runs(deck)
    return run


def steps_of(deck: Deck, run: str, attempt: int, rank: int) -> list[int]:
    whole = deck.log(run, rank, attempt=attempt).decode().rpartition("\n")[0]
    return [int(line.split()[1]) for line in whole.splitlines() if line.startswith("step ")]


def wait_steps(deck: Deck, run: str, attempt: int = 0) -> None:
    wait_until(lambda: all(steps_of(deck, run, attempt, rank) for rank in range(2)), what=f"steps of attempt {attempt}")


@pytest.mark.usefixtures("welcome")
def test_a_run_is_reached_from_the_login_node_although_each_task_prints_before(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 1}}
    run = rankdeck.launch(write_profile(write_script("go_on.py", GO_ON), 1, layout=layout))
    wait_steps(rankdeck, run)
    pids = rankdeck.pids(run)
    assert rankdeck.wait_status(run, lambda now: now["state"] == "running")["ranks"][0]["pid"] == pids[0]
    wait_until(lambda: "go_on.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_gone(*pids)


def test_a_run_of_the_users_batch_file_is_reached_from_the_login_node_and_stopped(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str]
) -> None:
    job = batch("LAUNCH")
    run = the_run(rankdeck)
    wait_steps(rankdeck, run)
    status = rankdeck.wait_status(run, lambda now: now["state"] == "running")
    assert [rank["node"] for rank in status["ranks"]] == ["sl1", "sl1"]
    wait_until(lambda: "go_on.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), what="the job has ended")


def test_a_run_of_the_users_batch_file_ends_with_its_job_in_words_of_slurm(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str]
) -> None:
    job = batch("LAUNCH")
    run = the_run(rankdeck)
    wait_steps(rankdeck, run)
    slurm.run("scancel", job)
    wait_until(lambda: "running" not in rankdeck("ps", "--all").stdout, what="ps knows the end")
    said = rankdeck("status", run).stdout
    assert f"Slurm's job {job}" in said.partition("\n")[0], said
    assert "rankdeck restart" not in said, said
