"""A supervisor that dies comes back without anybody asking for it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support import is_alive, kill_hard, parent_of, wait_gone, wait_until

FOR_EVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)\n"
FAILS = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists('fail'): time.sleep(0.02)\nos.remove('fail')\nsys.exit(1)\n"


def guards(deck) -> list[int]:
    return [process.pid for process in deck.processes() if "guard_process" in process.command]


def guard_of(deck, supervisor: int) -> int:
    """Waits for the guard of this supervisor; one that has just started it may still be there."""
    return wait_until(lambda: next((pid for pid in guards(deck) if parent_of(pid) == supervisor), 0), what="a guard")


def current(deck, run: str, old: int = 0) -> int:
    """The supervisor that lives now and is not `old`; 0 where there is none. Starts none, as a command would."""
    try:
        pid = int(json.loads((deck.folder(run) / "supervisor.json").read_bytes())["pid"])
    except (OSError, ValueError):
        return 0
    return pid if pid != old and is_alive(pid) else 0


def next_supervisor(deck, run: str, old: int) -> int:
    return wait_until(lambda: current(deck, run, old), what=f"another supervisor than {old}")


def next_or_none(deck, run: str, old: int, log: Path) -> int:
    wait_until(lambda: current(deck, run, old) or b"died in a row" in log.read_bytes(), what="a supervisor, or none")
    return current(deck, run, old)


@pytest.fixture
def run(rankdeck, write_script, write_profile) -> str:
    run: str = rankdeck.launch(write_profile(write_script("up.py", FOR_EVER)))
    rankdeck.wait_log(run, 0, b"up")
    return run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_comes_back_by_itself(rankdeck, run, number):
    supervisor = current(rankdeck, run)
    for _ in range(2):
        guard_of(rankdeck, supervisor)
        os.kill(supervisor, number)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    guard_of(rankdeck, supervisor)


def test_a_rank_that_dies_after_its_supervisor_is_restarted_without_a_command(
    rankdeck, write_script, write_profile, work
):
    profile = write_profile(write_script("fails.py", FAILS), launch={"on_failure": "restart", "max_restarts": 2})
    run = rankdeck.launch(profile)
    rankdeck.wait_log(run, 0, b"up")
    supervisor = current(rankdeck, run)
    guard_of(rankdeck, supervisor)
    kill_hard(supervisor)
    (work / "fail").touch()
    second = rankdeck.folder(run) / "attempt_1" / "rank_0.out"
    wait_until(lambda: second.exists() and second.read_bytes() == b"up\n", what="a second attempt")


def test_a_guard_that_is_killed_is_started_again(rankdeck, run):
    supervisor = current(rankdeck, run)
    guard = guard_of(rankdeck, supervisor)
    kill_hard(guard)
    wait_gone(guard)
    guard_of(rankdeck, supervisor)
    kill_hard(supervisor)
    next_supervisor(rankdeck, run, supervisor)


def wait_connected(deck, run: str, times: int) -> None:
    """Waits until supervisors of the run have connected to its agent so many times."""
    wait_until(lambda: [event["event"] for event in deck.journal(run)].count("NodeConnected") == times, what="a link")


def test_a_supervisor_comes_back_that_is_killed_with_its_guard(rankdeck, run):
    supervisor = current(rankdeck, run)
    for count in (1, 2):
        wait_connected(rankdeck, run, count)
        kill_hard(guard_of(rankdeck, supervisor))
        kill_hard(supervisor)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    guard_of(rankdeck, supervisor)


def test_the_guard_ends_with_the_run_and_starts_nothing(rankdeck, run):
    guard_of(rankdeck, current(rankdeck, run))
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_supervisors_that_die_at_once_are_not_started_for_ever(rankdeck, run):
    """The run is left alone until somebody asks for it."""
    supervisor, log = current(rankdeck, run), rankdeck.folder(run) / "supervisor.log"
    while supervisor:
        guard_of(rankdeck, supervisor)
        kill_hard(supervisor)
        supervisor = next_or_none(rankdeck, run, supervisor, log)
    wait_until(lambda: guards(rankdeck) == [], what="no guard is left")
    assert rankdeck.status(run)["state"] == "running"
