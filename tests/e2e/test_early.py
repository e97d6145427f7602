"""The supervisor that `run` and `launch` start before they plan: it takes the run, or ends."""

import json
import subprocess
import sys
from pathlib import Path

from engine.client import early
from engine.client.starting import start_supervisor
from engine.runs.paths import RunPaths
from tests.support import COMMAND, run_program, wait_until


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command as a program: forks of tests do without."""
    return run_program([*COMMAND, *map(str, words)])


def test_a_launch_gives_its_run_to_it(rankdeck, write_profile):
    profile = write_profile("print('up')", ranks=2)
    done = run("launch", profile)
    assert done.returncode == 0, done.stderr
    assert rankdeck.status()["state"] == "succeeded"
    assert (rankdeck.folder(rankdeck.status()["run"]) / "supervisor.log").exists()
    wait_until(lambda: not rankdeck.processes())


def test_without_a_run_it_ends_with_the_command(rankdeck, work):
    assert run("run", "missing.py").returncode != 0
    wait_until(lambda: not rankdeck.processes())


def test_it_ends_before_a_run_that_needs_none_is_followed(rankdeck, work):
    early.start_early()
    started = early.waiting
    early.end_early()
    assert started is not None
    assert (started.returncode, early.waiting) == (0, None)


def test_another_is_started_where_it_was_killed(rankdeck, launch):
    first = launch("print('up')")
    assert rankdeck("wait", first).returncode == 0
    folder = rankdeck.folder(first).parent / "again-aaaa"
    folder.mkdir(mode=0o700)
    for name in ("plan.json", "profile.toml"):
        (folder / name).write_bytes((rankdeck.folder(first) / name).read_bytes())
    early.start_early()
    killed = early.waiting
    assert killed is not None
    killed.kill()
    killed.wait()
    start_supervisor(RunPaths(folder))
    assert rankdeck("wait", folder.name).returncode == 0


def test_it_needs_a_whole_line(rankdeck, work):
    done = subprocess.run(
        [sys.executable, "-P", COMMAND[-1], "supervise"],
        input=json.dumps(str(work)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
