"""A supervisor and a template that a front end has got ready for a launch that may come.

What the standby itself does is in `engine.supervisor.warm_up`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from engine.client.connection import start_detached
from engine.core.plan.plan import LaunchPlan
from engine.runs.paths import STANDBY, RunPaths, private_folder, runs_folder
from engine.runs.record import replace_file

BEGINNING = 60.0
"""Seconds within which a standby has taken its lock, however slow the machine is."""


class Standby:
    """One of them.

    Args:
        plan: the first run that may be launched.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        runs = private_folder(runs_folder())
        _remove_stale_standbys(runs)
        folder = runs / f"{STANDBY}{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        paths = RunPaths(folder)
        replace_file(paths.plan, msgspec.json.encode(plan))
        self._process = start_detached(paths, ["standby", str(folder)], stdin=subprocess.PIPE)
        self._process.wait()  # its child goes on

    def serves(self, plan: LaunchPlan) -> bool:
        """Whether ranks of this plan can be forked from what is warming."""
        return plan.warm and (self._plan.python, _environment(self._plan)) == (plan.python, _environment(plan))

    def keep(self) -> bool:
        """Says that it is still wanted. Returns whether it is still there."""
        return self._say("")

    def take(self, paths: RunPaths) -> bool:
        """Lets it become the supervisor of a run. Returns whether it has."""
        if not self._say(str(paths.folder)):
            return False
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        self.drop()
        return said == b"ready"

    def drop(self) -> None:
        """Gives it up: it ends when it hears nothing any more."""
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
    """What an agent of this machine makes of a plan's environment."""
    return {**plan.env_defaults, **os.environ, **plan.env}


def _remove_stale_standbys(runs: Path) -> None:
    """Takes away what standbys have left that were killed; one that has no lock yet may have only just begun."""
    for folder in runs.glob(f"{STANDBY}*"):
        with contextlib.suppress(OSError):
            begins = time.time() - folder.stat().st_mtime < BEGINNING
            lock = os.open(RunPaths(folder).lock, os.O_RDWR | os.O_CLOEXEC | (0 if begins else os.O_CREAT), 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
