"""After a launch from the shell a standby stays: the next launch takes it, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from engine.client import run as client_run
from engine.client.engine import LocalEngine
from engine.client.run import LocalRun
from engine.commands.follow import stop_and_wait
from engine.planning.profiles import read_profile
from engine.runs.paths import RunPaths
from tests.support import Deck, kill_hard, wait_until

SAY = "import os, torch\nprint('up', os.environ['RANK'], os.environ.get('MARKED', ''), os.getpid(), flush=True)"
STAY = {"warm": True, "linger": 300}


def standbys(deck: Deck) -> list[Path]:
    return sorted(path for path in (deck.home / "runs").glob(".standby-*") if (path / "standby.json").exists())


def wait_quiet(deck: Deck) -> None:
    """Waits until nothing is left: no process, folder or socket."""
    wait_until(lambda: standbys(deck) == [] and not deck.processes())
    assert deck.sockets() == []


def templates(deck: Deck) -> set[int]:
    """The processes that have imported torch, or do so now."""
    return set(deck.of_role("template"))


def test_the_next_launch_takes_what_stayed_and_clean_ends_what_stays_after_it(rankdeck, write_script, write_profile):
    profile = write_profile(write_script("say.py", SAY), ranks=2, launch=STAY)
    assert rankdeck("launch", profile).returncode == 0
    assert len(standbys(rankdeck)) == 1, "the command has waited for it"
    # The ranks are forked ahead: a rank of the next launch is one of these processes.
    forked = wait_until(lambda: found if len(found := templates(rankdeck)) == 4 else set())
    assert f"standby {first_pid(rankdeck)}" in rankdeck("ps", "--all").stdout
    assert rankdeck("launch", profile).returncode == 0
    run = rankdeck.status("-")["run"]
    pids = {int(rankdeck.log(run, rank).split()[-1]) for rank in range(2)}
    assert pids <= forked
    assert "NodeDisconnected" not in [event["event"] for event in rankdeck.journal(run)]
    assert [event["earlier"] for event in rankdeck.journal(run) if event["event"] == "ModulesImported"] == [True]
    assert rankdeck("clean", "--standby").stdout == "ended 1 standby\n"
    wait_quiet(rankdeck)
    assert rankdeck("clean", "--standby").stdout == "there is no standby\n"


def test_a_module_that_was_edited_since_its_import_is_never_old(rankdeck, write_script, write_profile, work):
    write_script("own/shared.py", "WHAT = 'old'")
    script = write_script("say.py", "import shared\nprint('up', shared.WHAT)")
    env = {"PYTHONPATH": str(work / "own")}
    profile = write_profile(script, ranks=2, launch={**STAY, "preload": ["shared"]}, env=env)
    told = []
    for text in ("old", "old", "newer"):
        if text == "newer":
            write_script("own/shared.py", "WHAT = 'newer'")
        assert rankdeck("launch", profile).returncode == 0
        wait_until(lambda: len(templates(rankdeck)) == 4)  # it has imported, and forked ranks and store ahead
        run = rankdeck.status("-")["run"]
        (imported,) = [event for event in rankdeck.journal(run) if event["event"] == "ModulesImported"]
        told.append((rankdeck.log(run, 0), imported["earlier"]))
    assert told == [(b"up old\n", False), (b"up old\n", True), (b"up newer\n", False)]
    assert rankdeck("clean", "--standby").stdout == "ended 1 standby\n"
    wait_quiet(rankdeck)


def test_a_command_does_not_wait_for_the_end_of_the_standby_that_its_run_leaves(
    rankdeck, write_script, write_profile, monkeypatch
):
    monkeypatch.setattr(client_run, "END_TIME", 600.0)
    run = rankdeck.launch(write_profile(write_script("wait.py", "import time\ntime.sleep(600)"), launch=STAY))
    asyncio.run(stop_and_wait(LocalRun(RunPaths(rankdeck.folder(run))), at_once=True, wait=True))
    assert rankdeck("clean", "--standby").stdout == "ended 1 standby\n"
    wait_quiet(rankdeck)


def first_pid(deck: Deck) -> int:
    return wait_until(lambda: all_standbys(deck))[0]


def test_another_environment_is_started_without_it_and_one_that_nobody_calls_ends_by_itself(
    rankdeck, write_script, write_profile
):
    script = write_script("say.py", SAY)
    assert rankdeck("launch", write_profile(script, launch=STAY)).returncode == 0
    first = wait_until(lambda: standbys(rankdeck))
    other = write_profile(script, name="other", launch={"warm": True, "linger": 1}, env={"MARKED": "yes"})
    assert rankdeck("launch", other).returncode == 0
    assert rankdeck.log(rankdeck.status("-")["run"], 0).startswith(b"up 0 yes")
    wait_until(lambda: standbys(rankdeck) == first and len(all_standbys(rankdeck)) == 1)
    rankdeck("clean", "--standby")
    wait_quiet(rankdeck)


def all_standbys(deck: Deck) -> list[int]:
    return deck.of_role("standby")


@pytest.mark.parametrize("words", [("--cold",), ("--set", "launch.linger=off"), ("--set", "launch.warm=false")])
def test_a_launch_may_leave_none(rankdeck, write_script, write_profile, words):
    profile = write_profile(write_script("say.py", "print('up')"), launch=STAY)
    assert rankdeck("launch", profile, *words).returncode == 0
    wait_quiet(rankdeck)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_that_can_not_answer_does_not_keep_a_launch(
    rankdeck, write_script, write_profile, number, monkeypatch
):
    monkeypatch.setattr("engine.client.standby.ANSWER_TIME", 0.1)
    profile = write_profile(write_script("say.py", "import os\nprint('up', os.environ['RANK'])"), launch=STAY)
    assert rankdeck("launch", profile).returncode == 0
    wait_until(lambda: len(standbys(rankdeck)) == 1)
    pid = first_pid(rankdeck)
    os.kill(pid, number)
    run = asyncio.run(LocalEngine(lingers=True).launch(read_profile(profile)))
    kill_hard(pid)
    assert rankdeck("wait", run).returncode == 0
    assert rankdeck.log(run, 0) == b"up 0\n"
    rankdeck("clean", "--standby")
    for pid in rankdeck.of_role(
        "bridge", "warden", "agent"
    ):  # an agent whose supervisor was killed stays for its lease
        kill_hard(pid)
