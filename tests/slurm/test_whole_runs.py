"""Runs from their launch to their end, as people use them on a login node: with a kill, a rejoin and a look from elsewhere; behind another
job with nobody there; over several jobs, each of which reaches its time limit."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.runs.paths import RunPaths
from engine.runs.replay import stored_snapshot
from tests import elastic_runs
from tests.conftest import WriteProfile, WriteScript
from tests.quickstart import unhurried
from tests.slurm.lab import Slurm
from tests.support import Deck, complete_lines, entries, kill_hard, wait_gone, wait_until

ENDLESS = ("--steps", "1000000", "--checkpoint-every", "0")  # arguments of a quickstart that ends when it is stopped


def curve(deck: Deck, run: str, rank: int) -> list[tuple[int, int]]:
    """The loss of a rank as it is kept: for each point its last step, and the number of values in it."""
    series = stored_snapshot(RunPaths(deck.folder(run))).series
    found = [dump.buckets for dump in series if (dump.key, dump.rank) == ("loss", rank)]
    return [(bucket.step or 0, bucket.count) for bucket in found[0]]


def assert_continuous(points: list[tuple[int, int]]) -> None:
    """Every step from the first one on is in the curve, once."""
    last = 0
    for step, count in points:
        assert step == last + count, points
        last = step


def job_of(deck: Deck, run: str) -> str:
    job: str = json.loads((deck.folder(run) / "job.json").read_text())["job"]
    return job


def wait_job_gone(slurm: Slurm, job: str) -> None:
    """Waits until a job is no longer in the queue. Nothing else happens meanwhile; prints how long it takes."""
    began = time.monotonic()
    wait_until(lambda: job not in slurm.run("squeue", "-h", "-o", "%A").split(), what=f"job {job} has left the queue")
    print(f"job {job} was gone {time.monotonic() - began:.2f} s after the end of its run")


# --- everything that people do ------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(slurm: Slurm, rankdeck: Deck) -> Deck:
    """rankdeck's command on the other login node."""
    deck = Deck(rankdeck.home)
    deck.argv = [*slurm.other_login, *rankdeck.argv]
    return deck


@pytest.fixture
def allocation(slurm: Slurm, work: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell in an allocation of two nodes, which ends with the shell."""
    write = f"env -0 > {work}/shell.new && mv {work}/shell.new {work}/shell && exec cat"
    words = ["salloc", "--nodes=2", "--ntasks-per-node=2", "sh", "-c", write]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as salloc:
        wait_until((work / "shell").exists, what="the allocation has a shell")
        pairs = (work / "shell").read_text().split("\0")
        yield dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        assert salloc.stdin is not None
        salloc.stdin.close()  # the shell ends


def assert_kill_and_rejoin(deck: Deck, run: str, **options: Any) -> None:
    """Kills a rank, and brings it back: the others keep their process, and all make further steps in the same attempt."""
    before = elastic_runs.pids(elastic_runs.reached(deck, run, 3))
    assert deck("kill", run, "--rank", "3", **options).returncode == 0
    wait_gone(before[3])
    holding = deck.wait_status(run, lambda now: now["state"] == "holding" and now["ranks"][3]["exit"] is not None)
    furthest = max(rank["step"] for rank in holding["ranks"])
    assert "rejoin" in deck("restart", run, "--failed", **options).stdout
    after = elastic_runs.reached(deck, run, furthest + 1)
    assert after["attempt"] == 0
    elastic_runs.assert_kept(deck, run, before, after, 0, 1, 2)


def assert_watched_and_left(deck: Deck, run: str, **options: Any) -> None:
    """Attaches, sees what the ranks print, detaches, and finds the same processes; asks for their stacks."""
    pids = deck.pids(run)
    with deck.start("attach", run, **options) as attached:
        assert attached.stdout is not None
        assert any("loss" in line for line in attached.stdout), "attach prints what ranks print"
        attached.send_signal(signal.SIGINT)
        attached.communicate()
    assert deck.pids(run) == pids, "detaching ends nothing"
    wait_until(lambda: "gpt.py" in deck("stacks", run, **options).stdout, what="the stacks of the ranks")


def test_quickstart_by_salloc_is_killed_rejoins_is_left_and_stopped_and_the_job_has_no_step_then(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile, allocation: dict[str, str]
) -> None:
    job = allocation["SLURM_JOB_ID"]
    profile = write_profile(unhurried(write_script, *ENDLESS), 2, launch={"warm": True}, layout={"slurm": "current"})
    done = rankdeck("launch", profile, "--detach", env=allocation)
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    assert [rank["node"] for rank in elastic_runs.reached(rankdeck, run, 1)["ranks"]] == ["sl1", "sl1", "sl2", "sl2"]
    assert_kill_and_rejoin(rankdeck, run, env=allocation)
    assert_watched_and_left(rankdeck, run)  # from another shell of this login node
    pids = rankdeck.pids(run)
    assert rankdeck("stop", run, env=allocation).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_gone(*pids)
    wait_until(lambda: not slurm.steps(job), what="every step has ended")
    assert slurm.state(job) == "RUNNING", "the allocation is the user's"


def test_quickstart_that_is_submitted_is_killed_rejoins_is_watched_from_elsewhere_and_its_job_leaves_with_it(
    slurm: Slurm, rankdeck: Deck, elsewhere: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    run = rankdeck.launch(
        write_profile(
            unhurried(write_script, *ENDLESS),
            2,
            launch={"warm": True},
            layout={"slurm": {"nodes": 2, "ranks_per_node": 2}},
        )
    )
    assert [rank["node"] for rank in elastic_runs.reached(rankdeck, run, 1)["ranks"]] == ["sl1", "sl1", "sl2", "sl2"]
    assert_kill_and_rejoin(rankdeck, run)
    assert_watched_and_left(elsewhere, run)
    job, pids = job_of(rankdeck, run), rankdeck.pids(run)
    assert elsewhere("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_job_gone(slurm, job)
    wait_gone(*pids)
    assert slurm.state(job) == "COMPLETED"


# --- nobody is there -----------------------------------------------------------------------------------------------------

COUNT = entries("slurm/whole_runs", "count")


def test_a_run_waits_30_s_behind_another_job_and_trains_with_all_processes_on_the_login_node_killed(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, work: Path
) -> None:
    script = f"until [ -e '{work}/killed' ]; do sleep 0.1; done; sleep 30"
    other = slurm.run("sbatch", "--parsable", "--nodes=2", "--export=NONE", "--output=/dev/null", "--wrap", script)
    wait_until(lambda: slurm.state(other) == "RUNNING", what="the other job runs")
    profile = write_profile(COUNT, 2, layout={"slurm": {"nodes": 2, "ranks_per_node": 2}})
    with rankdeck.start("launch", profile):  # in the foreground: somebody watches
        wait_until(lambda: list((rankdeck.home / "runs").glob("*/job.json")), what="the run is submitted")
        run = rankdeck.status("-")["run"]
        for process in rankdeck.processes():
            kill_hard(process.pid)
        wait_until(lambda: not rankdeck.processes(), what="nothing of ours lives on the login node")
    assert rankdeck.status(run)["state"] == "queued"
    (work / "killed").touch()
    job, journal = job_of(rankdeck, run), rankdeck.folder(run) / "journal.jsonl"
    wait_until(lambda: slurm.state(job) == "COMPLETED", what="the job has begun and ended")
    assert slurm.state(other) == "COMPLETED"
    assert "RunLaunched" in journal.read_text(), "the journal is that of the job: no command of ours has written it"
    assert rankdeck.status(run)["state"] == "succeeded"
    assert "line 40" in rankdeck("attach", run).stdout
    for rank in range(4):
        points = curve(rankdeck, run, rank)
        assert_continuous(points)
        assert points[-1][0] == 40


# --- over several jobs ---------------------------------------------------------------------------------------------------

ELASTIC = entries("slurm/whole_runs", "elastic")
"""Writes a checkpoint after the step in which SIGTERM arrives. Ends in the third job."""

PLAIN = entries("slurm/whole_runs", "plain")  # writes a checkpoint every 10 steps; SIGTERM ends it at once


def steps_of(deck: Deck, run: str, attempt: int, rank: int) -> list[int]:
    lines = complete_lines(deck.log(run, rank, attempt=attempt)).decode().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def test_two_runs_go_on_over_jobs_of_a_minute_one_loses_no_step_and_the_other_those_since_its_checkpoint(
    slurm: Slurm, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    """Slurm itself warns before the limit. Both runs at once, each on a node."""
    job = {"nodes": 1, "ranks_per_node": 2, "time": "1", "warn": 10, "on_limit": "requeue"}
    options = {"layout": {"slurm": job}, "launch": {"stop_ladder": [["SIGTERM", 8], ["SIGKILL", 5]]}}
    elastic, plain = (
        rankdeck.launch(write_profile(write_script(f"{name}.py", text), 2, name=name, **options))
        for name, text in (("elastic", ELASTIC), ("plain", PLAIN))
    )
    jobs: dict[str, set[str]] = {elastic: set(), plain: set()}

    def have_ended() -> bool:
        for run, seen in jobs.items():
            seen.add(job_of(rankdeck, run))
        return all(rankdeck.status(run)["state"] == "succeeded" for run in jobs)

    wait_until(have_ended, seconds=300, what="both runs have ended")
    for run, seen in jobs.items():
        attempts = rankdeck.status(run)["attempt"] + 1
        assert attempts == len(seen) >= 3, "one run; each of its attempts is a job"
        for rank in range(2):
            points, reached = curve(rankdeck, run, rank), 0
            for steps in (steps_of(rankdeck, run, attempt, rank) for attempt in range(attempts)):
                if not steps:  # on a busy machine, a job of a minute may reach its limit before the first one
                    continue
                assert steps == list(range(steps[0], steps[-1] + 1))
                lost = reached - (steps[0] - 1)
                assert lost == 0 if run == elastic else 0 <= lost <= 10 and steps[0] % 10 == 1
                reached = steps[-1]
            assert points[-1][0] == reached
            assert sum(count for _, count in points) >= reached, "one curve, from the first step on"
            if run == elastic:
                assert_continuous(points)
