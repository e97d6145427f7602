"""Two login nodes share a home: what may be done on one of them to a run whose supervisor is on the other."""

import json
import os
import shlex
import signal
import socket
import subprocess
from subprocess import CompletedProcess

import pytest

from engine.core.errors import SupervisorError
from engine.runs.lock import take_lock
from engine.runs.paths import RunPaths
from tests.conftest import WriteProfile
from tests.support import COMMAND, Deck, check_err, is_alive, kill_hard, run_program, wait_gone, wait_until

STAY = "import time; time.sleep(10_000)"
HERE = socket.gethostname()
OTHER = "login2"


def on_other_node(*words: str) -> CompletedProcess[str]:
    """A command of rankdeck on another login node: the host has another name, and a runtime folder of its own at the same path."""
    runtime = shlex.quote(os.environ["XDG_RUNTIME_DIR"])
    line = f"hostname {OTHER} && mount -t tmpfs tmpfs {runtime} && exec {shlex.join([*COMMAND, *words])}"
    return run_program(["unshare", "--uts", "--mount", "sh", "-c", line])


def where(rankdeck: Deck, run: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((rankdeck.folder(run) / "supervisor.json").read_text())
    return found


def lose_supervisor(rankdeck: Deck) -> None:
    """Kills the supervisor and its guard together: each would replace the other."""
    lost = rankdeck.of_role("supervisor", "guard")
    for pid in lost:
        os.kill(pid, signal.SIGSTOP)
    for pid in lost:
        kill_hard(pid)
    wait_gone(*lost)


@pytest.fixture
def run(rankdeck: Deck, write_profile: WriteProfile, needs_root: None) -> str:
    """A run whose supervisor is on this host."""
    if subprocess.run(["unshare", "--uts", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode:
        pytest.skip("this machine does not let us make namespaces")
    profile = write_profile(STAY)
    launched: str = json.loads(rankdeck("launch", profile, "--detach", "--json").stdout)["run"]
    wait_until(lambda: [one["state"] for one in json.loads(rankdeck("ps", "--json").stdout)] == ["running"])
    return launched


def test_a_run_of_another_login_node_is_named_and_left_alone(rankdeck: Deck, run: str) -> None:
    before, rank = where(rankdeck, run), rankdeck.status(run)["ranks"][0]["pid"]
    (line,) = json.loads(on_other_node("ps", "--json").stdout)
    assert (line["host"], line["elsewhere"], line["reachable"], line["state"]) == (HERE, True, False, "running")
    assert f"ssh -t {HERE} rankdeck attach {run}" in on_other_node("ps").stdout
    asked = [
        ["status", run], ["stop", run], ["stop", run, "--now"], ["restart", run, "--all"], ["attach", run],
        ["kill", run, "--rank", "0"], ["stacks", run], ["wait", run], ["clean", run, "--yes"],
    ]  # fmt: skip
    for words in asked:
        done = on_other_node(*words)
        assert done.returncode != 0, words
        assert f"the supervisor of {run} is on {HERE}" in done.stderr, words
        assert f"ssh -t {HERE} rankdeck" in done.stderr, words
    assert json.loads(on_other_node("clean", "--yes", "--json").stdout) == []
    assert where(rankdeck, run) == before
    assert is_alive(rank)


def test_a_lost_supervisor_is_replaced_on_its_own_login_node_only(rankdeck: Deck, run: str) -> None:
    before, rank = where(rankdeck, run), rankdeck.status(run)["ranks"][0]["pid"]
    lose_supervisor(rankdeck)
    done = on_other_node("status", run)
    assert f"the supervisor of {run} is on {HERE}" in done.stderr
    refused = on_other_node("supervise", str(rankdeck.folder(run)))
    assert f"the supervisor of {run} is on {HERE}" in refused.stdout
    assert where(rankdeck, run) == before
    after = rankdeck.status(run)
    assert after["state"] == "running"
    assert after["ranks"][0]["pid"] == rank
    assert where(rankdeck, run)["pid"] != before["pid"]


def test_an_ended_run_is_removed_on_any_login_node_unless_its_supervisor_lives(rankdeck: Deck, run: str) -> None:
    rankdeck("stop", run, "--now")
    rankdeck("wait", run)
    paths = RunPaths(rankdeck.folder(run))
    wait_until(lambda: not paths.supervisor.exists())
    whereabouts = {"host": "login9", "pid": 1, "version": "0", "socket": "/nowhere"}
    paths.supervisor.write_text(json.dumps(whereabouts))
    with pytest.raises(SupervisorError, match="is on login9"):
        take_lock(paths)
    assert json.loads(rankdeck("clean", "--yes", "--json").stdout) == []
    done = rankdeck("clean", run, "--yes")
    assert f"ssh -t login9 rankdeck clean {run}" in done.stderr
    assert paths.plan.exists()
    paths.supervisor.unlink()
    assert json.loads(on_other_node("clean", "--yes", "--json").stdout) == [run]
    assert not paths.folder.exists()


def test_a_run_of_a_host_that_is_gone_is_taken_over_and_continued(rankdeck: Deck, run: str) -> None:
    """As a container that was made again: the host has another name, and its processes live or not."""
    rank = rankdeck.status(run)["ranks"][0]["pid"]
    refused = on_other_node("takeover", run)
    assert "there is no terminal to confirm it" in refused.stderr
    answered = on_other_node("takeover", run, "--yes")
    check_err(answered, 1, f"the supervisor of {run} lives on {HERE}")
    assert where(rankdeck, run)["host"] == HERE

    lose_supervisor(rankdeck)
    note = RunPaths(rankdeck.folder(run)).supervisor
    note.write_text(json.dumps({**where(rankdeck, run), "host": "login9"}))
    assert "is on login9" in rankdeck("status", run).stderr
    assert rankdeck("takeover", run, "--yes").returncode == 0
    status = rankdeck.status(run)
    assert (status["state"], status["ranks"][0]["pid"]) == ("running", rank)
    assert "belongs to this host" in rankdeck("takeover", run, "--yes").stderr


def test_a_plan_that_somebody_has_removed_comes_back_while_the_supervisor_lives(rankdeck: Deck, run: str) -> None:
    paths = RunPaths(rankdeck.folder(run))
    before = paths.plan.read_bytes()
    paths.plan.unlink()
    wait_until(paths.plan.exists, what="the plan comes back")
    assert paths.plan.read_bytes() == before
    assert rankdeck("stop", run, "--now").returncode == 0
    rankdeck("wait", run)


def test_clean_ends_and_removes_a_run_that_has_neither_plan_nor_supervisor(rankdeck: Deck, run: str) -> None:
    paths, rank = RunPaths(rankdeck.folder(run)), rankdeck.status(run)["ranks"][0]["pid"]
    lose_supervisor(rankdeck)
    paths.plan.unlink()
    assert json.loads(rankdeck("clean", "--yes", "--json").stdout) == [], "without its name it stays: it has processes"
    assert f"rankdeck clean {run} removes it" in rankdeck("ps").stdout
    cleaned = rankdeck("clean", run, "--yes", "--json")
    assert (cleaned.stdout, cleaned.stderr) == (f'["{run}"]\n', "")
    assert not paths.folder.exists()
    assert not is_alive(rank)
    wait_until(lambda: rankdeck.processes() == [])
    assert rankdeck.sockets() == []
