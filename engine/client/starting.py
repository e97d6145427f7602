"""Starts supervisors."""

import json
import os
import subprocess
import sys

from engine.client import early
from engine.core.errors import SupervisorError
from engine.installed import COMMAND
from engine.linux.files import open_regular
from engine.linux.processes import MARK
from engine.runs.paths import RunPaths


def start_supervisor(paths: RunPaths, restart_by: str | None = None) -> None:
    """Starts the supervisor of a run, in its own session. `restart_by`: the user who has asked for a new attempt. Raises SupervisorError: it did not
    start; message and next step are its own."""
    starter = None if restart_by else _take_early(paths)
    starter = starter or start_detached(paths, ["supervise", str(paths.folder), *([restart_by] if restart_by else [])])
    with starter:
        assert starter.stdout is not None
        said = starter.stdout.readline().decode(errors="replace").strip()
        if said == "ready":
            return
        hint = starter.stdout.readline().decode(errors="replace").strip()
    raise SupervisorError(said or "the supervisor did not start", hint=hint or f"its log: {paths.supervisor_log}")


def _take_early(paths: RunPaths) -> subprocess.Popen[bytes] | None:
    """Gives the run to the supervisor that was started before; None: there is none."""
    starter, early.waiting = early.waiting, None
    if starter is None:
        return None
    assert starter.stdin is not None
    try:
        os.write(starter.stdin.fileno(), json.dumps(str(paths.folder)).encode() + b"\n")
    except OSError:  # it was killed
        with starter:
            return None
    return starter


def start_detached(paths: RunPaths, words: list[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Starts a rankdeck command in its own session. Its standard output is a pipe; errors go to the supervisor's log. `words`: after `rankdeck`.
    `stdin`: as for Popen."""
    # A supervisor that a rank's script starts must not be killed as a stray child of that rank's run.
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with open(open_regular(paths.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as log:
        argv = [sys.executable, "-P", str(COMMAND), *words]
        return subprocess.Popen(
            argv, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
