"""The processes that start the next supervisor."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from engine.supervisor.lifetime import guard_process
from engine.supervisor.lifetime.guard import end_guards
from tests.support import PATIENCE, kill_hard, wait_until

SUPERVISOR = 1 << 22
"""Pid of a supervisor that has died before its guard could ask who its parent is: no process has this number."""

NEXT = "import os, sys\nopen(os.path.join(sys.argv[2], 'started'), 'a').write('.')\nprint('ready')\n"


@pytest.mark.parametrize("patience", ["0.0", "0.01"])
@pytest.mark.parametrize(("newest", "starts"), [("this", True), ("another", False), ("none", False)])
def test_only_a_guard_of_the_newest_supervisor_starts_the_next_one(
    tmp_path: Path, patience: str, newest: str, starts: bool
) -> None:
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    lock.touch()
    command.write_text(NEXT)
    if newest != "none":
        whereabouts.write_text(json.dumps({"pid": SUPERVISOR + (newest == "another")}))
    arguments = [str(path) for path in (lock, command, tmp_path, whereabouts)]
    subprocess.run(
        [sys.executable, "-I", "-S", guard_process.__file__, "0", patience, str(SUPERVISOR), *arguments],
        stdin=subprocess.DEVNULL,  # its end, as if the supervisor had died
        check=True,
    )
    assert (tmp_path / "started").exists() == starts


def test_a_guard_whose_supervisor_was_replaced_ends_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the turn meanwhile, and the guards of the next supervisor would wait for it."""
    whereabouts = tmp_path / "supervisor.json"
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR + 1}))
    paused: list[int] = []
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    monkeypatch.setattr(guard_process, "pause", paused.append)
    guard_process.main(5, 0.0, SUPERVISOR, str(tmp_path / "lock"), "", str(tmp_path), str(whereabouts))
    assert paused == []


def test_a_guard_that_came_too_late_leaves_the_next_supervisor_to_its_own_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has started finds that another guard was faster; that one's supervisor has died too when it looks again."""
    (tmp_path / "lock").touch()
    command, whereabouts = tmp_path / "command.py", tmp_path / "supervisor.json"
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR}))
    another = json.dumps({"pid": SUPERVISOR + 1})
    command.write_text(
        f"import os, sys\nopen(sys.argv[2] + '/started', 'a').write('.')\nopen({str(whereabouts)!r}, 'w').write({another!r})\n"
        "print('the run already has a supervisor')"
    )
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    guard_process.main(0, 0.0, SUPERVISOR, str(tmp_path / "lock"), str(command), str(tmp_path), str(whereabouts))
    assert (tmp_path / "started").read_text() == "."


def test_a_lock_that_is_still_taken_delays_the_next_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel closes the files of a killed supervisor one after the other: its pipe may end before its lock is free."""
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    command.write_text(NEXT)
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR}))
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr("time.sleep", lambda _: held.close())
        guard_process.main(0, 0.0, SUPERVISOR, *map(str, (lock, command, tmp_path, whereabouts)))
        assert held.closed
    assert (tmp_path / "started").read_text() == "."


@pytest.mark.parametrize("missing", ["lock", "locks"])
def test_a_guard_without_a_lock_starts_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    command.write_text(NEXT)
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR}))
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    if missing == "locks":
        lock.touch()
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    guard_process.main(0, 0.0, SUPERVISOR, *map(str, (lock, command, tmp_path, whereabouts)))
    assert not (tmp_path / "started").exists()


def test_the_next_guard_has_its_turn_when_the_first_is_killed_in_its_own(tmp_path: Path) -> None:
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    lock.touch()
    command.write_text(
        f"import os, sys, time\nopen(sys.argv[2] + '/pid', 'w').write(f'{{os.getpid()}} ')\ntime.sleep({PATIENCE})"
    )
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR}))
    arguments = ["0", "0.0", str(SUPERVISOR), *map(str, (lock, command, tmp_path, whereabouts))]
    argv = [sys.executable, "-I", "-S", guard_process.__file__, *arguments]
    first = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    written = wait_until(
        lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), what="it starts a supervisor"
    )
    command.write_text(NEXT)
    second = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    first.kill()
    first.wait(PATIENCE)
    kill_hard(int(written))
    assert second.wait(PATIENCE) == 0
    assert (tmp_path / "started").read_text() == "."


def test_the_pause_before_the_next_supervisor_grows_with_the_deaths_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    for deaths in range(14):
        guard_process.pause(deaths)
    assert pauses == [0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0, 60.0]


def test_a_run_that_is_given_up_ends_its_guards_and_no_others(tmp_path: Path) -> None:
    arguments = [
        "0",
        "0.0",
        str(SUPERVISOR),
        str(tmp_path / "command.py"),
        str(tmp_path),
        str(tmp_path / "supervisor.json"),
    ]
    words = [sys.executable, "-I", "-S", guard_process.__file__, *arguments[:3]]
    locks = [str(tmp_path / name) for name in ("lock", "other")]
    guards = [subprocess.Popen([*words, lock, *arguments[3:]], stdin=subprocess.PIPE) for lock in locks]
    end_guards(locks[0], only_stopped=True)
    assert [guard.poll() for guard in guards] == [None, None]
    end_guards(locks[0], only_stopped=False, apart={guards[0].pid})
    assert [guard.poll() for guard in guards] == [None, None]
    end_guards(locks[0], only_stopped=False)
    guards[0].communicate()
    guards[1].communicate()
    assert [guard.returncode for guard in guards] == [-signal.SIGKILL, 0]
