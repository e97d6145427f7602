"""The processes that start the next supervisor."""

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

from engine.installed import ROOT
from engine.linux.processes import boot_id, start_time
from engine.runs.paths import RunPaths
from engine.supervisor.lifetime import guard, guard_process
from engine.supervisor.lifetime.guard import end_guards

SUPERVISOR = 1 << 22
"""Pid of a supervisor that has died before its guard could ask who its parent is: no process has this number."""

NEXT = "import os, sys\nopen(os.path.join(sys.argv[2], 'started'), 'a').write('.')\nprint('ready')\n"


@pytest.fixture(autouse=True)
def without_title(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process keeps its own title."""
    monkeypatch.setattr(guard_process, "show_title", lambda *_: None)


@pytest.mark.parametrize(("newest", "starts"), [("this", True), ("another", False), ("none", False)])
def test_only_a_guard_of_the_newest_supervisor_starts_the_next_one(tmp_path: Path, newest: str, starts: bool) -> None:
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    lock.touch()
    command.write_text(NEXT)
    if newest != "none":
        whereabouts.write_text(json.dumps({"pid": SUPERVISOR + (newest == "another")}))
    arguments = [str(path) for path in (lock, command, tmp_path, whereabouts)]
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", guard_process.PROGRAM, str(ROOT), "0", str(SUPERVISOR), *arguments],
        stdin=subprocess.DEVNULL,  # its end, as if the supervisor had died
        check=True,
    )
    assert (tmp_path / "started").exists() == starts


def test_a_guard_whose_supervisor_was_replaced_ends_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whereabouts = tmp_path / "supervisor.json"
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR + 1}))
    paused: list[int] = []
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    monkeypatch.setattr(guard_process, "pause", paused.append)
    guard_process.main(5, SUPERVISOR, str(tmp_path / "lock"), "", str(tmp_path), str(whereabouts))
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
    guard_process.main(0, SUPERVISOR, str(tmp_path / "lock"), str(command), str(tmp_path), str(whereabouts))
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
        guard_process.main(0, SUPERVISOR, *map(str, (lock, command, tmp_path, whereabouts)))
        assert held.closed
    assert (tmp_path / "started").read_text() == "."


@pytest.mark.parametrize("missing", ["lock", "locks"])
def test_a_guard_without_a_lock_starts_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str):
    lock, command, whereabouts = tmp_path / "lock", tmp_path / "command.py", tmp_path / "supervisor.json"
    command.write_text(NEXT)
    whereabouts.write_text(json.dumps({"pid": SUPERVISOR}))
    monkeypatch.setattr("engine.supervisor.lifetime.guard_process.signal.signal", lambda *_: None)
    monkeypatch.setattr(guard_process, "wait_death", lambda _: None)
    if missing == "locks":
        lock.touch()
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    guard_process.main(0, SUPERVISOR, *map(str, (lock, command, tmp_path, whereabouts)))
    assert not (tmp_path / "started").exists()


def test_the_pause_before_the_next_supervisor_grows_with_the_deaths_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    for deaths in range(14):
        guard_process.pause(deaths)
    assert pauses == [0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0, 60.0]


def test_a_run_that_is_given_up_ends_its_guards_and_no_others(tmp_path: Path) -> None:
    runs = [RunPaths(tmp_path / name) for name in ("one", "other")]
    guards = [subprocess.Popen(["sleep", "60"]) for _ in runs]
    for run, process in zip(runs, guards, strict=True):
        run.folder.mkdir()
        guard._note_guard(run, process.pid)
    end_guards(runs[0])
    assert guards[0].wait() == -signal.SIGKILL
    assert guards[1].poll() is None
    guards[1].kill()
    guards[1].wait()


def test_a_process_that_has_the_number_of_a_guard_is_left_alone(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as other:
        for noted in (
            {"boot": boot_id(), "guards": [[other.pid, 1]]},
            {"boot": "another", "guards": [[other.pid, start_time(other.pid)]]},
        ):
            paths.guards.write_text(json.dumps(noted))
            end_guards(paths)
        assert other.poll() is None
        other.kill()
