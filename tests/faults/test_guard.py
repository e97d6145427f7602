"""A supervisor that dies comes back without anybody asking for it."""

import json
import os
import signal
import subprocess

import pytest

from engine.supervisor.lifetime import guard_process
from tests.support import COMMAND, entries, is_alive, kill_hard, parent_of, process_state, wait_gone, wait_until

FOR_EVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)\n"
FAILS = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists('fail'): time.sleep(0.02)\nos.remove('fail')\nsys.exit(1)\n"


def guard_of(deck, supervisor: int) -> int:
    """Waits for the guard of this supervisor; the one that has just started it may still be there."""
    found: list[int] = wait_until(
        lambda: [pid for pid in deck.of_role("guard") if parent_of(pid) == supervisor and is_alive(pid)]
    )
    return found[0]


def current(deck, run: str, old: int = 0) -> int:
    """The supervisor that lives now and is not `old`; 0 where there is none. Starts none, as a command would."""
    try:
        pid = int(json.loads((deck.folder(run) / "supervisor.json").read_bytes())["pid"])
    except (OSError, ValueError):
        return 0
    return pid if pid != old and is_alive(pid) else 0


def next_supervisor(deck, run: str, old: int) -> int:
    return wait_until(lambda: current(deck, run, old), what=f"another supervisor than {old}")


@pytest.fixture
def run(rankdeck, launch) -> str:
    run: str = launch(FOR_EVER, says=b"up")
    return run


SAVES = entries("faults/guard", "saves")


@pytest.mark.parametrize("is_killed", [False, True])
def test_sigterm_to_every_process_of_a_run_stops_it_as_stop_does(rankdeck, work, is_killed, launch):
    (work / "ckpt").mkdir()
    run = launch(SAVES, says=b"up")
    supervisor = current(rankdeck, run)
    guard_of(rankdeck, supervisor)
    for role in ("agent", "warden", "bridge", "guard", "template", "supervisor"):
        for pid in rankdeck.of_role(role):
            os.kill(pid, signal.SIGTERM)
    wait_until((work / "ckpt" / "step_3.pt").exists)
    if is_killed:  # the machine has no patience; the next supervisor only finishes the stop
        kill_hard(supervisor)
        next_supervisor(rankdeck, run, supervisor)
    (work / "go").touch()
    ended = rankdeck.wait_state(run, "stopped")
    assert "stopped by SIGTERM to the supervisor; checkpoint of step 3 was saved" in ended["doing"]


def test_a_rank_that_dies_after_its_supervisor_is_restarted_without_a_command(rankdeck, work, launch):
    run = launch(FAILS, launch={"on_failure": "restart", "max_restarts": 2}, says=b"up")
    supervisor = current(rankdeck, run)
    guard_of(rankdeck, supervisor)
    kill_hard(supervisor)
    (work / "fail").touch()
    second = rankdeck.folder(run) / "attempt_1" / "rank_0.out"
    wait_until(lambda: second.exists() and second.read_bytes() == b"up\n", what="a second attempt")


def test_the_guard_that_starts_a_supervisor_does_not_end_before_that_one_has_a_guard(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guard_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGSTOP)  # it replaces none
    for pid in (old, supervisor):
        kill_hard(pid)
    wait_gone(supervisor)
    command, env = [*COMMAND, "supervise", rankdeck.folder(run)], {**os.environ, guard_process.DEATHS: "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        supervisor = current(rankdeck, run)
        os.kill(supervisor, signal.SIGSTOP)  # it starts none from now on
    guard_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guard_that_is_killed_or_stopped_is_replaced(rankdeck, run, number):
    supervisor = current(rankdeck, run)
    old = guard_of(rankdeck, supervisor)
    os.kill(old, number)
    wait_gone(old)
    guard_of(rankdeck, supervisor)
    kill_hard(supervisor)
    next_supervisor(rankdeck, run, supervisor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_command_replaces_a_supervisor_that_was_hit_together_with_its_guard(rankdeck, run, number):
    supervisor = current(rankdeck, run)
    guard, (rank,) = guard_of(rankdeck, supervisor), rankdeck.pids(run)
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: process_state(supervisor) == "T")
    kill_hard(guard)
    wait_gone(guard)
    os.kill(supervisor, number)
    assert is_alive(rank)
    assert rankdeck.status(run)["state"] == "running"
    assert current(rankdeck, run, supervisor)
    assert rankdeck.pids(run) == [rank]


def test_a_guard_that_is_stopped_does_not_outlive_the_run_although_its_supervisor_was_killed(rankdeck, run):
    supervisor = current(rankdeck, run)
    os.kill(guard_of(rankdeck, supervisor), signal.SIGSTOP)
    kill_hard(supervisor)
    assert rankdeck.status(run)["state"] == "running"
    rankdeck("stop", run, "--now")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_a_supervisor_that_is_stopped_is_replaced(rankdeck, run):
    supervisor = current(rankdeck, run)
    guard_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGSTOP)
    next_supervisor(rankdeck, run, supervisor)
    wait_gone(supervisor)


def test_a_bridge_that_is_stopped_is_replaced(rankdeck, run):
    supervisor = current(rankdeck, run)
    (bridge,) = rankdeck.of_role("bridge")
    assert parent_of(bridge) == supervisor
    os.kill(bridge, signal.SIGSTOP)
    wait_gone(bridge)
    kill_hard(rankdeck.pids(run)[0])
    rankdeck.wait_status(run, lambda status: status["ranks"][0]["exit"] == -signal.SIGKILL)


def test_supervisors_that_die_at_once_are_started_ever_more_slowly(rankdeck, run):
    supervisor, log = current(rankdeck, run), rankdeck.folder(run) / "supervisor.log"
    for _ in range(guard_process.MANY_DEATHS):
        guard_of(rankdeck, supervisor)
        kill_hard(supervisor)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    assert b"died in a row" not in log.read_bytes()
    guard_of(rankdeck, supervisor)
    kill_hard(supervisor)
    wait_until(lambda: b"died in a row" in log.read_bytes(), what="the log says it")
    next_supervisor(rankdeck, run, supervisor)
