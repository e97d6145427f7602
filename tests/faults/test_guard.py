"""A supervisor that dies comes back without anybody asking for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess

import pytest

from engine.supervisor.lifetime import guard_process
from engine.supervisor.lifetime.guard import PATIENCE
from tests.support import COMMAND, is_alive, kill_hard, parent_of, process_state, wait_gone, wait_until

FOR_EVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)\n"
FAILS = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists('fail'): time.sleep(0.02)\nos.remove('fail')\nsys.exit(1)\n"


def guards(deck) -> list[int]:
    return [process.pid for process in deck.processes() if "guard_process" in process.command]


def guards_of(deck, supervisor: int) -> list[int]:
    """Waits for all guards of this supervisor; those that have just started it may still be there."""

    def all_of_them() -> list[int]:
        found = [pid for pid in guards(deck) if parent_of(pid) == supervisor and is_alive(pid)]
        return found if len(found) == len(PATIENCE) else []

    return wait_until(all_of_them, what="all guards")


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
def run(rankdeck, write_script, write_profile) -> str:
    run: str = rankdeck.launch(write_profile(write_script("up.py", FOR_EVER)))
    rankdeck.wait_log(run, 0, b"up")
    return run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_comes_back_by_itself(rankdeck, run, number):
    supervisor = current(rankdeck, run)
    for _ in range(2):
        guards_of(rankdeck, supervisor)
        os.kill(supervisor, number)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    guards_of(rankdeck, supervisor)


def test_the_guard_that_starts_a_supervisor_does_not_end_before_that_one_has_guards(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guards_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGSTOP)  # it replaces none
    for pid in (*old, supervisor):
        kill_hard(pid)
    wait_gone(supervisor)
    command, env = [*COMMAND, "supervise", rankdeck.folder(run)], {**os.environ, guard_process.DEATHS: "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        supervisor = current(rankdeck, run)
        os.kill(supervisor, signal.SIGSTOP)  # it starts none from now on
    guards_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGCONT)


def test_a_rank_that_dies_after_its_supervisor_is_restarted_without_a_command(
    rankdeck, write_script, write_profile, work
):
    profile = write_profile(write_script("fails.py", FAILS), launch={"on_failure": "restart", "max_restarts": 2})
    run = rankdeck.launch(profile)
    rankdeck.wait_log(run, 0, b"up")
    supervisor = current(rankdeck, run)
    guards_of(rankdeck, supervisor)
    kill_hard(supervisor)
    (work / "fail").touch()
    second = rankdeck.folder(run) / "attempt_1" / "rank_0.out"
    wait_until(lambda: second.exists() and second.read_bytes() == b"up\n", what="a second attempt")


def test_guards_that_are_killed_are_started_again(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guards_of(rankdeck, supervisor)
    for guard in old:
        kill_hard(guard)
    wait_gone(*old)
    guards_of(rankdeck, supervisor)
    kill_hard(supervisor)
    next_supervisor(rankdeck, run, supervisor)


def test_a_supervisor_comes_back_that_is_killed_with_one_of_its_guards(rankdeck, run):
    supervisor = current(rankdeck, run)
    for number in range(len(PATIENCE)):
        kill_hard(sorted(guards_of(rankdeck, supervisor))[number])
        kill_hard(supervisor)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    guards_of(rankdeck, supervisor)


def test_a_supervisor_that_is_stopped_is_replaced(rankdeck, run):
    supervisor = current(rankdeck, run)
    guards_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGSTOP)
    next_supervisor(rankdeck, run, supervisor)
    wait_gone(supervisor)


def test_a_supervisor_is_replaced_that_is_stopped_with_one_guard_when_another_is_killed(rankdeck, run):
    supervisor = current(rankdeck, run)
    first, second, *_ = guards_of(rankdeck, supervisor)
    for pid in (supervisor, first):
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: {process_state(supervisor), process_state(first)} == {"T"})
    kill_hard(second)
    next_supervisor(rankdeck, run, supervisor)
    wait_gone(supervisor, first)


def test_a_command_replaces_a_supervisor_that_is_stopped_and_has_no_guards(rankdeck, run):
    supervisor = current(rankdeck, run)
    its_guards = guards_of(rankdeck, supervisor)
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: process_state(supervisor) == "T")
    for guard in its_guards:
        kill_hard(guard)
    wait_gone(*its_guards)
    assert rankdeck.status(run)["state"] == "running"
    assert current(rankdeck, run, supervisor)


def test_guards_that_are_stopped_are_replaced(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guards_of(rankdeck, supervisor)
    for guard in old:
        os.kill(guard, signal.SIGSTOP)
    wait_gone(*old)
    guards_of(rankdeck, supervisor)


def test_guards_that_are_stopped_do_not_outlive_the_supervisor_that_follows(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guards_of(rankdeck, supervisor)[0]
    os.kill(old, signal.SIGSTOP)
    kill_hard(supervisor)
    next_supervisor(rankdeck, run, supervisor)
    wait_gone(old)


def test_guards_that_are_stopped_do_not_outlive_the_run(rankdeck, run):
    for guard in guards_of(rankdeck, current(rankdeck, run)):
        os.kill(guard, signal.SIGSTOP)
    rankdeck("stop", run, "--now")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_a_guard_of_an_earlier_supervisor_that_is_stopped_while_it_waits_does_not_outlive_the_run(rankdeck, run):
    supervisor = current(rankdeck, run)
    old = guards_of(rankdeck, supervisor)
    kill_hard(supervisor)
    guards_of(rankdeck, next_supervisor(rankdeck, run, supervisor))  # it has ended the stopped ones that it has found
    for guard in old:
        with contextlib.suppress(ProcessLookupError):  # on a slow machine, it has ended by itself
            os.kill(guard, signal.SIGSTOP)
    rankdeck("stop", run, "--now")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_a_bridge_that_is_stopped_is_replaced(rankdeck, run):
    supervisor = current(rankdeck, run)
    family = [
        process.pid
        for process in rankdeck.processes()
        if "RANKDECK-AGENT" in process.command or " -I -S -c " in process.command
    ]
    (bridge,) = [pid for pid in family if parent_of(pid) == supervisor]
    os.kill(bridge, signal.SIGSTOP)
    wait_gone(bridge)
    kill_hard(rankdeck.pids(run)[0])
    rankdeck.wait_status(run, lambda status: status["ranks"][0]["exit"] == -signal.SIGKILL)


def test_the_guard_ends_with_the_run_and_starts_nothing(rankdeck, run):
    guards_of(rankdeck, current(rankdeck, run))
    rankdeck("stop", run)
    rankdeck.wait_state(run, "stopped")
    wait_until(lambda: rankdeck.processes() == [], what="no process is left")


def test_supervisors_that_die_at_once_are_started_ever_more_slowly(rankdeck, run):
    supervisor, log = current(rankdeck, run), rankdeck.folder(run) / "supervisor.log"
    for _ in range(guard_process.MANY_DEATHS):
        guards_of(rankdeck, supervisor)
        kill_hard(supervisor)
        supervisor = next_supervisor(rankdeck, run, supervisor)
    assert b"died in a row" not in log.read_bytes()
    guards_of(rankdeck, supervisor)
    kill_hard(supervisor)
    wait_until(lambda: b"died in a row" in log.read_bytes(), what="the log says it")
    next_supervisor(rankdeck, run, supervisor)
