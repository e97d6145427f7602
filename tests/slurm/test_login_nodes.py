"""Commands on another login node than that of the launch: another host name and network, the same file system."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WriteProfile
from tests.slurm.lab import Slurm
from tests.support import PATIENCE, Deck, entries, wait_gone, wait_until

COUNT = entries("slurm/login_nodes", "count")


@pytest.fixture
def elsewhere(slurm: Slurm, rankdeck: Deck) -> Deck:
    """rankdeck's command on the other login node."""
    deck = Deck(rankdeck.home)
    deck.argv = [*slurm.other_login, *rankdeck.argv]
    return deck


@pytest.fixture
def launch(rankdeck: Deck, write_profile: WriteProfile) -> Callable[..., str]:
    """Launches from here."""

    def launch(layout: dict[str, object]) -> str:
        ladder = {"stop_ladder": [["SIGTERM", 5], ["SIGKILL", 5]]}
        run: str = rankdeck.launch(write_profile(COUNT, 2, layout=layout, launch=ladder))
        return run

    return launch


ASKED = {"REQUEST_PING", "REQUEST_FED_INFO", "REQUEST_JOB_INFO", "REQUEST_JOB_USER_INFO", "REQUEST_PARTITION_INFO"}
"""Questions to a controller that commands of Slurm ask here."""

SUBMITTED = {"slurm": {"nodes": 2, "ranks_per_node": 2}}


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def wait_up(deck: Deck, run: str, attempt: int = 0) -> None:
    for rank in range(4):
        deck.wait_log(run, rank, b"line 1\n", attempt=attempt)


def test_a_submitted_run_is_watched_restarted_and_stopped_from_another_login_node(
    slurm: Slurm, rankdeck: Deck, elsewhere: Deck, launch: Callable[..., str]
) -> None:
    run = launch(SUBMITTED)
    wait_up(rankdeck, run)
    pids = rankdeck.pids(run)
    status = elsewhere.status(run)
    assert (status["state"], [rank["pid"] for rank in status["ranks"]]) == ("running", pids)
    wait_until(lambda: "job.py" in elsewhere("stacks", run).stdout, what="an answer in time, on a busy machine too")
    with elsewhere.start("attach", run) as attached:
        assert attached.stdout is not None
        assert any("line" in line for line in attached.stdout), "attach prints what ranks print"
        attached.send_signal(signal.SIGINT)
        attached.communicate()
    assert rankdeck.pids(run) == pids, "detaching ends nothing"
    assert elsewhere("kill", run, "--rank", "3").returncode == 0
    wait_gone(pids[3])
    rankdeck.wait_status(run, lambda status: status["ranks"][3]["state"] == "failed")
    done = elsewhere("restart", run)
    assert done.returncode == 0, done.stderr
    wait_up(rankdeck, run, attempt=1)
    job = json.loads((rankdeck.folder(run) / "job.json").read_text())["job"]
    done = elsewhere("stop", run)
    assert done.returncode == 0, done.stderr
    assert elsewhere.status(run)["state"] == "stopped"
    wait_until(lambda: slurm.state(job) == "COMPLETED", what="the job has ended")


def test_status_comes_from_files_where_packets_to_the_controller_are_dropped(
    slurm: Slurm, rankdeck: Deck, elsewhere: Deck, launch: Callable[..., str], tmp_path: Path
) -> None:
    run = launch(SUBMITTED)
    wait_up(rankdeck, run)
    rankdeck.wait_status(run, lambda status: status["as_of"] is not None)
    for name in ("scontrol", "squeue", "srun"):  # they hang for a minute there
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep 600\n")
        (tmp_path / name).chmod(0o755)
    with slurm.dropped_packets():
        done = elsewhere("status", run, "--json", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
        assert done.returncode == 0, done.stderr
        status = json.loads(done.stdout)
        assert (status["state"], [rank["node"] for rank in status["ranks"]]) == ("running", ["sl1"] * 2 + ["sl2"] * 2)
        assert elsewhere("ps", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).returncode == 0
    assert not (tmp_path / "asked").exists()
    assert elsewhere("stop", run).returncode == 0


def test_status_of_a_run_that_goes_on_asks_the_controller_nothing_and_is_what_its_supervisor_tells_in_the_job(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    run = launch(SUBMITTED)
    wait_up(rankdeck, run)
    rankdeck.wait_status(run, lambda status: all(rank["process"] and rank["step"] for rank in status["ranks"]))
    slurm.run("sdiag", "--reset")
    seen = rankdeck.status(run)
    assert not {*ASKED, "REQUEST_JOB_STEP_CREATE"} & {*slurm.rpcs()}
    assert 0 <= time.time() - seen["as_of"] < 60
    step = ["srun", f"--jobid={seen['job']['job']}", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=sl1"]
    argv = [*step, *rankdeck.argv, "status", run, "--json"]
    told = json.loads(subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=True).stdout)
    assert (told.pop("as_of"), seen.keys() - told.keys()) == (None, {"as_of"})
    assert 0 < seen["metrics"]["speed"] < told["metrics"]["speed"]
    moving = {"doing", "stall", "step", "loss", "throughput", "metrics", "ranks", "goodput"}
    assert {key: seen[key] for key in told.keys() - moving} == {key: told[key] for key in told.keys() - moving}
    assert seen["goodput"]["doing"] == told["goodput"]["doing"] == "training"
    assert [rank.keys() for rank in seen["ranks"]] == [rank.keys() for rank in told["ranks"]]
    for key in ("rank", "node", "local_rank", "pid", "state", "exit", "attempt", "generation"):
        assert [rank[key] for rank in seen["ranks"]] == [rank[key] for rank in told["ranks"]]
    assert rankdeck("stop", run).returncode == 0
    assert rankdeck.status(run)["state"] == "stopped"


def test_a_queued_run_is_told_of_and_cancelled_from_another_login_node(
    slurm: Slurm, elsewhere: Deck, launch: Callable[..., str]
) -> None:
    with slurm.job("--export=NONE"):
        run = launch(SUBMITTED)
        assert elsewhere.status(run)["state"] == "queued"
        wait_until(lambda: "waits" in elsewhere("ps").stdout, what="the reason")
        assert "is cancelled" in elsewhere("stop", run).stdout
        assert elsewhere.status(run)["state"] == "stopped"


def test_all_commands_of_a_user_ask_the_controller_once_for_what_waits_and_never_for_what_runs(
    slurm: Slurm, rankdeck: Deck, elsewhere: Deck, launch: Callable[..., str]
) -> None:
    running = launch(SUBMITTED)
    wait_up(rankdeck, running)
    wait_until(lambda: "running" in rankdeck("ps").stdout, what="the supervisor has written the state")
    slurm.run("sdiag", "--reset")
    for deck in (rankdeck, elsewhere):
        assert "running" in deck("ps").stdout
    assert not ASKED & {*slurm.rpcs()}
    waiting = launch(SUBMITTED)
    begin = time.monotonic()
    slurm.run("sdiag", "--reset")
    with contextlib.ExitStack() as ends:
        for deck in (rankdeck, elsewhere):
            ends.callback(end, ends.enter_context(deck.start("wait", waiting)))
        wait_until(lambda: slurm.rpcs().get("REQUEST_JOB_INFO"), what="a command asks")
        for deck in (rankdeck, elsewhere) * 3:
            assert "waits: it is next" in deck("ps").stdout
        asked = slurm.rpcs()
        assert asked["REQUEST_JOB_INFO"] <= 1 + (time.monotonic() - begin) / 20
        assert ASKED & {*asked} == {"REQUEST_JOB_INFO", "REQUEST_PARTITION_INFO"}
    for run in (waiting, running):
        assert rankdeck("stop", run).returncode == 0


def test_why_a_run_waits_is_told_although_the_controller_takes_five_seconds_for_each_answer(
    slurm: Slurm, rankdeck: Deck, launch: Callable[..., str]
) -> None:
    with slurm.job("--export=NONE"):
        run = launch(SUBMITTED)
        (rankdeck.home / "squeue-lab.json").unlink(missing_ok=True)
        with slurm.slow(5) as environment:
            wait_until(lambda: "waits: it is next" in rankdeck("ps", env=environment).stdout, what="the reason")
        assert rankdeck("stop", run).returncode == 0


def test_a_run_in_an_allocation_says_on_which_login_node_its_supervisor_is(
    rankdeck: Deck, elsewhere: Deck, launch: Callable[..., str], job: str
) -> None:
    run = launch({"slurm": int(job), "transport": "slurm"})
    wait_up(rankdeck, run)
    pids = rankdeck.pids(run)
    for words in (["attach", run], ["stop", run], ["restart", run], ["stacks", run]):
        done = elsewhere(*words)
        assert done.returncode != 0
        assert f"the supervisor of {run} is on {socket.gethostname()}" in done.stderr, done.stderr
    assert b"line 1" in elsewhere.raw("logs", run).stdout
    assert rankdeck.pids(run) == pids
