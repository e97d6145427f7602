"""Runs at a site: lines before each task, accounts, QOS that preempts, a /tmp of each node's own; and people's own batch files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.slurm import test_allocation, test_whole_runs
from tests.slurm.lab import Slurm, begin_again
from tests.support import PATIENCE, Deck, entries, wait_gone, wait_until

GO_ON = entries("slurm/submitted", "go_on")


@pytest.fixture(scope="session")
def cluster(site: Slurm) -> Slurm:
    """All tests here run at a site."""
    return site


@pytest.fixture
def batch(slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, work: Path) -> Callable[..., str]:
    """Submits a batch file of the user's own, in which some lines launch a profile `P`. Gives the job."""
    ladder = {"stop_ladder": [["SIGTERM", 20], ["SIGKILL", 5]]}
    profile = write_profile(GO_ON, 2, layout={"slurm": "current"}, launch=ladder)

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


def test_a_run_is_reached_from_the_login_node_although_each_task_prints_before(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile
) -> None:
    layout = {"slurm": {"nodes": 2, "ranks_per_node": 1}}
    run = rankdeck.launch(write_profile(GO_ON, 1, layout=layout))
    wait_steps(rankdeck, run)
    pids = rankdeck.pids(run)
    assert rankdeck.wait_status(run, lambda now: now["state"] == "running")["ranks"][0]["pid"] == pids[0]
    wait_until(lambda: "job.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_gone(*pids)


elsewhere = test_whole_runs.elsewhere
test_what_people_do_with_a_run_works_at_a_site_that_prints = test_whole_runs.test_quickstart_that_is_submitted_is_killed_rejoins_is_watched_from_elsewhere_and_its_job_leaves_with_it
test_rsync_brings_the_code_at_a_site_that_prints = test_allocation.test_rsync_brings_the_code_by_steps_of_the_job


@pytest.fixture
def launched(rankdeck: Deck, batch: Callable[..., str]) -> tuple[str, str]:
    """A job of the user's own, and the run in it, whose ranks make steps."""
    job = batch("LAUNCH")
    run = the_run(rankdeck)
    wait_steps(rankdeck, run)
    return job, run


def test_a_run_of_the_users_batch_file_is_reached_from_the_login_node_and_stopped(
    slurm: Slurm, rankdeck: Deck, launched: tuple[str, str]
) -> None:
    job, run = launched
    status = rankdeck.wait_status(run, lambda now: now["state"] == "running")
    assert [rank["node"] for rank in status["ranks"]] == ["sl1", "sl1"]
    wait_until(lambda: "job.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), what="the job has ended")


def test_a_run_of_the_users_batch_file_ends_with_its_job_in_words_of_slurm(
    slurm: Slurm, rankdeck: Deck, launched: tuple[str, str]
) -> None:
    job, run = launched
    slurm.run("scancel", job)
    wait_until(lambda: "running" not in rankdeck("ps", "--all").stdout, what="ps knows the end")
    said = rankdeck("status", run).stdout
    assert f"Slurm's job {job}" in said.partition("\n")[0], said
    assert "rankdeck restart" not in said, said


# --- jobs that begin again -----------------------------------------------------------------------------------------------


def test_a_batch_file_that_begins_again_continues_its_run(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str], work: Path
) -> None:
    job = batch("LAUNCH --set description=one && LAUNCH", "--requeue")
    wait_until(lambda: runs(rankdeck), what="a run has begun")
    first = the_run(rankdeck)
    wait_steps(rankdeck, first)
    begin_again(slurm, job)
    wait_steps(rankdeck, first, attempt=1)
    assert the_run(rankdeck) == first
    (work / "finish").touch()
    assert rankdeck.wait_state(first, "succeeded")["attempt"] == 1
    wait_until(lambda: len(runs(rankdeck)) == 2, what="the second line launches another run")
    (second,) = set(runs(rankdeck)) - {first}
    assert rankdeck.wait_state(second, "succeeded")["attempt"] == 0


@pytest.mark.parametrize("how", ["requeue", "preempt"])
def test_a_submitted_run_whose_job_begins_again_goes_on(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, work: Path, how: str
) -> None:
    keys = {"on_preempt": "requeue", "on_node_fail": "requeue"}
    layout = {"slurm": {"nodes": 1, "ranks_per_node": 2, "options": ["--nodelist=sl1", "--qos=low"], **keys}}
    run = rankdeck.launch(write_profile(GO_ON, 2, layout=layout))
    wait_steps(rankdeck, run)
    job = slurm.run("squeue", "-h", "-o", "%A")
    waiting = rankdeck.start("wait", run)
    if how == "requeue":
        begin_again(slurm, job)
    else:
        urgent = ["sbatch", "--parsable", "--nodelist=sl1", "--export=NONE", "--output=/dev/null", "--qos=urgent"]
        other = slurm.run(*urgent, "--wrap=exec sleep infinity")
        wait_until(lambda: slurm.state(job) == "PENDING", what="the job waits")
        wait_until(lambda: "queued" in rankdeck("ps").stdout, what="ps knows that it waits")
        slurm.run("scancel", other)
        slurm.run("scontrol", "update", f"jobid={job}", "starttime=now+3")
    wait_steps(rankdeck, run, attempt=1)
    (work / "finish").touch()
    assert rankdeck.wait_state(run, "succeeded")["attempt"] == 1
    with waiting:
        assert waiting.wait(PATIENCE) == 0, "it has waited for the job, too"


def test_a_batch_file_that_loses_a_node_waits_for_its_next_start(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str]
) -> None:
    """Slurm sends SIGTERM to the batch file too, so its launch asks for a stop before the supervisor knows why."""
    job = batch("exec LAUNCH", "--requeue", nodes=2)
    run = the_run(rankdeck)
    wait_steps(rankdeck, run)
    slurm.lose("sl2")
    wait_until(lambda: slurm.state(job) == "PENDING", what="the job waits")
    rankdeck.wait_state(run, "queued")
    slurm.run("scancel", job)
    rankdeck.wait_state(run, "failed")


@pytest.mark.parametrize(("key", "lost"), [("requeue", "the node"), ("requeue", "its slurmd"), ("stop", "the node")])
def test_a_submitted_run_that_loses_its_node_goes_on_if_its_key_says_so(
    slurm: Slurm,
    rankdeck: Deck,
    write_script: WriteScript,
    write_profile: WriteProfile,
    work: Path,
    key: str,
    lost: str,
) -> None:
    """Where only slurmd is lost, ranks and supervisor go on until they hear of the end of their job."""
    layout = {"slurm": {"nodes": 1, "ranks_per_node": 2, "on_preempt": "requeue", "on_node_fail": key}}
    run = rankdeck.launch(write_profile(write_script("go_on.py", GO_ON), 2, layout=layout, launch={"lease": 5}))
    wait_steps(rankdeck, run)
    pids, (node,) = (
        [*rankdeck.pids(run), rankdeck.supervisor(run)],
        {rank["node"] for rank in rankdeck.status(run)["ranks"]},
    )
    job = slurm.run("squeue", "-h", "-o", "%A")
    slurm.lose(node, whole=lost == "the node")
    wait_until(lambda: slurm.state(job) == "PENDING", what="the job waits")
    wait_gone(*pids)  # by itself, Slurm gives them two minutes
    slurm.run("scontrol", "update", f"jobid={job}", "starttime=now+3")
    if key == "requeue":
        wait_steps(rankdeck, run, attempt=1)
        assert node not in {rank["node"] for rank in rankdeck.status(run)["ranks"]}
        (work / "finish").touch()
        assert rankdeck.wait_state(run, "succeeded")["attempt"] == 1
    else:
        rankdeck.wait_state(run, "failed")
        wait_until(lambda: f"Slurm's job {job} lost a node" in rankdeck("status", run).stdout, what="the reason")


# --- messages of the site ------------------------------------------------------------------------------------------------


def test_what_job_submit_lua_says_is_told_whole(slurm: Slurm, rankdeck: Deck, write_script: WriteScript) -> None:
    words = ("run", "--slurm", "-n", "1", str(write_script("hello.py", "print('hello')")))
    done = rankdeck(*words)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["[r0 sl1] hello"])
    assert "rankdeck: Jobs on this cluster are charged by the core hour." in done.stderr
    refused = rankdeck(*words[:-1], "--set", "layout.slurm.partition=short", words[-1])
    assert refused.returncode == 3
    whole = "sbatch fails: short needs --account: ask your PI / Batch job submission failed: "
    assert whole in refused.stderr


def test_who_has_cancelled_a_job_that_waits_is_told(slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile) -> None:
    profile = write_profile("print('hello')", 1, layout={"slurm": {"nodes": 1, "options": ["--hold"]}})
    run = rankdeck.launch(profile)
    job = str(json.loads((rankdeck.folder(run) / "job.json").read_text())["job"])
    slurm.run("scancel", job)
    wait_until(lambda: "CANCELLED by" in slurm.run("sacct", "-nXo", "State%20", "-j", job), what="slurmdbd knows it")
    wait_until(lambda: "was cancelled by root" in rankdeck("status", run).stdout, what="the user's name")


# --- tasks of a step -----------------------------------------------------------------------------------------------------


def test_of_the_tasks_of_a_step_only_the_first_starts_a_run_unless_their_arguments_differ(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str], work: Path
) -> None:
    own = "srun --ntasks=2 sh -c 'LAUNCH --set description=$SLURM_PROCID'"
    job = batch(f"srun --ntasks=4 LAUNCH; {own}", nodes=2)
    said = work / "own.out"
    wait_until(lambda: said.exists() and b"run of this step" in said.read_bytes(), what="the other tasks say so")
    (work / "finish").touch()
    wait_until(lambda: slurm.state(job) == "COMPLETED", what="the job has ended well")
    assert len(runs(rankdeck)) == 3
    assert all(rankdeck.status(run)["state"] == "succeeded" for run in runs(rankdeck))


# --- variables -----------------------------------------------------------------------------------------------------------

OF_TASKS = ("SLURM_SRUN_COMM", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_TASK_PID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_STEP_LAUNCHER_PORT",
            "SLURM_TOPOLOGY", "SLURM_UMASK", "SLURM_EXIT_ERROR", "SLURM_MPI_TYPE", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION")  # fmt: skip
"""Beginnings of variables that differ between two steps, or that say how a step was asked for."""


def variables(file: Path) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in file.read_text().splitlines() if line.startswith("SLURM"))
    return {name: value for name, value in pairs if not name.startswith(OF_TASKS)}


def test_each_rank_has_the_variables_of_its_task_as_srun_sets_them_and_those_of_the_job(
    slurm: Slurm, rankdeck: Deck, batch: Callable[..., str], work: Path
) -> None:
    write = f"env > {work}/NAME.$SLURM_PROCID"
    program = work / "show.sh"
    program.write_text(f"#!/bin/sh\n{write.replace('NAME', 'rank')}\n")
    program.chmod(0o755)
    (work / "task.sh").write_text(f"#!/bin/sh\n{write.replace('NAME', 'task')}\n")
    lines = f"srun --cpu-bind=none sh {work}/task.sh; LAUNCH --set recipe.script={program}"
    job = batch(lines, "--cpus-per-task=2", nodes=2)
    wait_until(lambda: slurm.state(job) == "COMPLETED", what="the job has ended well")
    for rank in range(4):
        task, ours = variables(work / f"task.{rank}"), variables(work / f"rank.{rank}")
        task["SLURM_NODELIST"] = task["SLURM_STEP_NODELIST"] = "sl1,sl2"  # where Slurm writes sl[1-2]
        assert ours == task
