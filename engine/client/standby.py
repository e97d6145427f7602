"""Starts a supervisor and a template before a launch, so that the launch is faster. `engine.supervisor.warm_up` is the other side."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

import msgspec

from engine.client.connection import start_detached
from engine.core.plan.plan import LaunchPlan
from engine.runs.paths import STANDBY, RunPaths, private_folder, runs_folder
from engine.runs.record import replace_file

START_LIMIT = 60.0
"""Seconds within which a standby takes its lock, even on a slow machine."""


class Standby:
    """A supervisor without a run.

    Args:
        plan: of the run that may be launched.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        runs = private_folder(runs_folder())
        _remove_stale_standbys(runs)
        folder = runs / f"{STANDBY}{socket.gethostname()}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        paths = RunPaths(folder)
        replace_file(paths.plan, msgspec.json.encode(plan))
        self._process = start_detached(paths, ["standby", str(folder)], stdin=subprocess.PIPE)
        self._process.wait()  # its child keeps running

    def serves(self, plan: LaunchPlan) -> bool:
        """Whether its template can fork the ranks of a plan."""
        return plan.warm and (self._plan.python, _environment(self._plan)) == (plan.python, _environment(plan))

    def keep(self) -> bool:
        """Refreshes it. Returns whether it is alive."""
        return self._say("")

    def take(self, paths: RunPaths) -> bool:
        """Makes it the supervisor of a run. Returns whether that succeeded."""
        if not self._say(str(paths.folder)):
            return False
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        self.drop()
        return said == b"ready"

    def drop(self) -> None:
        """Closes its pipes, at which it ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _say(self, word: str) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(word) + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True


def _environment(plan: LaunchPlan) -> dict[str, str]:
    """The environment of ranks on this machine."""
    return {**plan.env_defaults, **os.environ, **plan.env}


def _remove_stale_standbys(runs: Path) -> None:
    """Removes folders of killed standbys. A new standby may not have taken its lock yet."""
    for folder in runs.glob(f"{STANDBY}*"):
        if folder.name.removeprefix(STANDBY).rpartition("-")[0] != socket.gethostname():
            continue  # another host shares this home, but perhaps not the locks in it
        with contextlib.suppress(OSError):
            is_new = time.time() - folder.stat().st_mtime < START_LIMIT
            lock = os.open(RunPaths(folder).lock, os.O_RDWR | os.O_CLOEXEC | (0 if is_new else os.O_CREAT), 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
