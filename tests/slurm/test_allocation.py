"""Runs in a Slurm job, whose nodes only srun reaches: from launch to end, and what fails meanwhile."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import elastic_runs
from tests.conftest import WriteProfile
from tests.slurm.lab import Slurm
from tests.support import (
    Deck,
    entries,
    is_alive,
    kill_hard,
    processes_with,
    run_program,
    use_mpi,
    wait_gone,
    wait_until,
)

COUNT = entries("slurm/allocation", "count")

CALM = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}


@pytest.fixture
def launch(rankdeck: Deck, write_profile: WriteProfile, job: str) -> Callable[..., str]:
    """Launches two ranks on each node of a job, and waits until they are up."""

    def launch(**sections: Any) -> str:
        layout = {"slurm": int(job), "transport": "slurm"}
        sections["launch"] = {**CALM, **sections.get("launch", {})}
        run: str = rankdeck.launch(write_profile(COUNT, 2, layout=layout, **sections))
        for rank in range(4):
            rankdeck.wait_log(run, rank, b"line 1\n")
        return run

    return launch


def sruns(job: str, home: Path) -> list[int]:
    """The processes of srun that connect a run with its nodes, without the child that each has."""
    found = processes_with("RANKDECK_HOME", str(home))
    pids = [one.pid for one in found if one.command.startswith("srun ") and f"--jobid={job} " in one.command]
    return [pid for pid in pids if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) not in pids]


def last_line(deck: Deck, run: str, rank: int, attempt: int = 0) -> int:
    whole, _, _ = deck.log(run, rank, attempt=attempt).rpartition(b"\n")
    return int(whole.splitlines()[-1].split()[1])


def wait_more(deck: Deck, run: str, attempt: int = 0) -> None:
    """Waits until the supervisor has stored more output of every rank."""
    before = [last_line(deck, run, rank, attempt) for rank in range(4)]
    wait_until(lambda: all(last_line(deck, run, one, attempt) > before[one] for one in range(4)), what="output goes on")


def test_inside_salloc_a_run_needs_no_ssh(
    slurm: Slurm, rankdeck: Deck, work: Path, write_profile: WriteProfile
) -> None:
    profile = write_profile(COUNT, 2, layout={"slurm": "current"})
    (work / "finish").touch()
    words = ["salloc", "--nodes=2", "--gres=gpu:2", "--ntasks-per-node=2", "--mem-per-cpu=100"]
    done = run_program([*words, *rankdeck.argv, "launch", str(profile)])
    assert done.returncode == 0, done.stderr
    run = next((rankdeck.home / "runs").iterdir()).name
    said = [rankdeck.log(run, rank).decode().split()[:5] for rank in range(4)]
    cores = str(len(os.sched_getaffinity(0)))
    assert said == [["up", node, local, cores, "2"] for node in slurm.names for local in "01"]
    assert {node["transport"] for node in json.loads((rankdeck.folder(run) / "plan.json").read_text())["nodes"]} == {
        "slurm"
    }


def test_a_run_outlives_supervisor_and_agent(slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], job: str):
    run = launch()
    pids = rankdeck.pids(run)
    supervisor = rankdeck.supervisor(run)
    kill_hard(supervisor)
    wait_until(lambda: rankdeck.supervisor(run) != supervisor, what="another supervisor")
    wait_more(rankdeck, run)
    agents = [event["agent_pid"] for event in rankdeck.journal(run) if event["event"] == "NodeConnected"]
    kill_hard(agents[-1])
    wait_more(rankdeck, run)
    assert rankdeck.pids(run) == pids
    assert all(map(is_alive, pids))
    assert rankdeck("stop", run).returncode == 0
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: not slurm.steps(job), what="every step has ended")
    assert slurm.state(job) == "RUNNING"


def test_ranks_whose_srun_is_killed_are_told_and_start_again(
    rankdeck: Deck, launch: Callable[..., str], job: str, work: Path
) -> None:
    """An srun has a child that cancels its step if it is killed: Slurm's behaviour, which nothing switches off."""
    run = launch()
    pids = rankdeck.pids(run)
    for pid in sruns(job, rankdeck.home):
        kill_hard(pid)
    wait_gone(*pids)
    rankdeck.wait_status(run, lambda status: all(one["state"] in ("failed", "lost") for one in status["ranks"]))
    assert rankdeck("restart", run).returncode == 0
    for rank in range(4):
        rankdeck.wait_log(run, rank, b"line 1\n", attempt=1)
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")


def test_a_rank_that_is_killed_is_told_and_all_start_again(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], work: Path
) -> None:
    run = launch()
    wait_until(lambda: "job.py" in rankdeck("stacks", run).stdout, what="an answer in time, on a busy machine too")
    os.kill(rankdeck.pids(run)[3], signal.SIGKILL)
    rankdeck.wait_status(run, lambda status: status["ranks"][3]["state"] == "failed")
    assert "killed by SIGKILL" in rankdeck("status", run).stdout
    assert rankdeck("restart", run).returncode == 0
    for rank in range(4):
        rankdeck.wait_log(run, rank, b"line 1\n", attempt=1)
    (work / "finish").touch()
    rankdeck.wait_state(run, "succeeded")


def test_a_job_that_is_cancelled_ends_its_run_in_words(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], job: str
) -> None:
    run = launch()
    pids = rankdeck.pids(run)
    slurm.run("scancel", job)
    rankdeck.wait_state(run, "failed")
    assert f"Slurm's job {job} was cancelled" in rankdeck("status", run).stdout
    wait_gone(*pids)


def test_a_job_that_slurm_puts_back_into_the_queue_ends_its_run_in_words(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str], job: str
) -> None:
    run = launch()
    pids = rankdeck.pids(run)
    slurm.run("scontrol", "requeue", job)
    rankdeck.wait_state(run, "failed")
    words = f"Slurm has taken the nodes of job {job} away, and put it back into the queue"
    assert words in rankdeck("status", run).stdout
    wait_gone(*pids)


def test_check_asks_every_node_and_leaves_no_step(
    slurm: Slurm, rankdeck: Deck, job: str, write_profile: WriteProfile
) -> None:
    profile = write_profile(COUNT, 1, layout={"slurm": int(job)})
    done = rankdeck("check", profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in slurm.names)
    wait_until(lambda: not slurm.steps(job), what="every step has ended")


MPI = entries("slurm/allocation", "mpi")


@pytest.mark.parametrize(("form", "library"), [("allocation", "mpich"), ("submitted", "openmpi")])
def test_mpi_ranks_meet_by_daemons_that_agents_start(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, library: str, form: str,
) -> None:  # fmt: skip
    """By itself, mpirun finds the job by its variables, and starts its daemons with srun."""
    pytest.importorskip("mpi4py")
    job = int(request.getfixturevalue("job")) if form == "allocation" else {"nodes": 2, "ranks_per_node": 2}
    use_mpi(library, tmp_path, monkeypatch)
    profile = write_profile(MPI, 2, layout={"slurm": job}, backend={"name": "mpi"})
    run = rankdeck.launch(profile)
    assert rankdeck("wait", run).returncode == 0, rankdeck("status", run).stdout
    said = [rankdeck.log(run, rank).decode().split() for rank in range(4)]
    places = [("sl1", "0"), ("sl1", "1"), ("sl2", "0"), ("sl2", "1")]
    assert said == [["up", str(rank), node, local, "4.0"] for rank, (node, local) in enumerate(places)]


def test_a_rank_rejoins_over_srun_and_the_others_keep_their_process(
    rankdeck: Deck, write_profile: WriteProfile, job: str, work: Path
) -> None:
    run = rankdeck.launch(write_profile(elastic_runs.TRAIN, 2, layout={"slurm": int(job)}, args=["1000000", "0.05"]))
    before = elastic_runs.pids(elastic_runs.reached(rankdeck, run, 20))
    kill_hard(before[3])
    holding = rankdeck.wait_status(run, lambda now: now["state"] == "holding" and now["ranks"][3]["exit"] is not None)
    furthest = max(rank["step"] for rank in holding["ranks"])
    assert "rejoin" in rankdeck("restart", run, "--failed").stdout
    after = elastic_runs.reached(rankdeck, run, furthest + 1)
    assert (after["attempt"], after["ranks"][3]["node"]) == (0, "sl2")
    elastic_runs.assert_kept(rankdeck, run, before, after, 0, 1, 2)
    (work / "finish").touch()
    assert elastic_runs.result(rankdeck, run)


def test_rsync_brings_the_code_by_steps_of_the_job(
    slurm: Slurm, rankdeck: Deck, write_profile: WriteProfile, job: str, work: Path
) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("there is no rsync")
    project = slurm.unshared / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import os, socket; print(socket.gethostname(), *sorted(os.listdir()), flush=True)"
    )
    (project / ".gitignore").write_text("*.big\n")
    (project / "data.big").touch()
    launch = {"sync": "rsync", "workdir": str(project)}
    run = rankdeck.launch(write_profile(project / "train.py", 1, layout={"slurm": int(job)}, launch=launch))
    rankdeck.wait_state(run, "succeeded")
    assert [rankdeck.log(run, rank) for rank in range(2)] == [
        b"sl1 .gitignore train.py\n",
        b"sl2 .gitignore train.py\n",
    ]
    shutil.rmtree(project)
