"""Runs in a job of a fake PBS: nodes that only its tasks reach, which have no input and whose output goes elsewhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import WriteProfile, WriteScript
from tests.fake_pbs import FakePbs, fake_pbs, fake_pbs_nodes
from tests.support import Deck, is_alive, kill_hard, wait_until

__all__ = ["fake_pbs", "fake_pbs_nodes"]  # fixtures

COUNT = """
import os, rankdeck, time
print("up", os.environ["FAKE_PBS_NODE"], flush=True)
step = 0
while step < 5 or not os.path.exists("finish"):
    step += 1
    rankdeck.log(step=step, loss=1 / step)
    print("step", step, flush=True)
    time.sleep(0.05)
"""

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


def test_check_asks_every_node(
    job: FakePbs, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile
) -> None:
    profile = write_profile(write_script("count.py", COUNT), 2, layout={"pbs": "current"})
    done = rankdeck("check", profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodea" in done.stdout
    assert "nodeb" in done.stdout


@pytest.mark.parametrize(
    ("nodes", "without", "words"),
    [
        (("nodea", "down1"), "", "PBS starts no task there: TM_SUCCESS 17002 the state of the node: pbsnodes down1"),
        (
            ("nodea",),
            "PBS_ENVIRONMENT",
            "rankdeck does not run in a PBS job here start rankdeck inside qsub -I or a job",
        ),
    ],
)
def test_why_there_is_no_task_is_told(
    job: FakePbs, rankdeck: Deck, write_script: WriteScript, write_profile: WriteProfile,
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...], without: str, words: str,
) -> None:  # fmt: skip
    job.nodes = nodes
    job.job()
    monkeypatch.delenv(without, raising=False)
    profile = write_profile(write_script("count.py", COUNT), 2, layout={"pbs": "current", "transport": "pbs"})
    done = rankdeck("check", profile)
    assert done.returncode != 0
    assert words in " ".join(done.stdout.split())
