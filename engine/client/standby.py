"""The front end's side of a standby, which makes a launch faster. `engine.supervisor.standby.waiting` is the other side."""

from __future__ import annotations

import contextlib
import subprocess
from typing import IO

import msgspec

from engine.client.starting import start_detached
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import can_stand_by, standby_key
from engine.gate import Permit
from engine.planning.trust import admit
from engine.runs.paths import RunPaths
from engine.runs.standbys import circumstances, new_standby


class Standby:
    """A supervisor without a run. `key`: Key of the launches that it serves. `words` and `answers`: the pipes to it."""

    def __init__(self, key: str, words: IO[bytes], answers: IO[bytes]) -> None:
        self._key, self._words, self._answers = key, words, answers

    @classmethod
    def start(cls, plan: LaunchPlan, permit: Permit) -> Standby:
        """Starts a standby that ends with this process. `plan`: Plan of the run that may be launched. `permit`: what may start. Raises
        NotTrustedError: a standby for this plan may not."""
        admit(permit, plan, code=False)
        paths = new_standby(plan)
        process = start_detached(paths, ["standby", str(paths.folder)], stdin=subprocess.PIPE)
        process.wait()  # its child keeps running
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(standby_key(plan, circumstances()), process.stdin, process.stdout)

    def serves(self, plan: LaunchPlan) -> bool:
        """Whether its template can fork the ranks of a plan."""
        return can_stand_by(plan) and standby_key(plan, circumstances()) == self._key

    def keep(self) -> bool:
        """Refreshes it. Returns whether it is alive."""
        return self._say("")

    def take(self, paths: RunPaths) -> bool:
        """Makes it the supervisor of a run. Returns whether that succeeded."""
        if not self._say(str(paths.folder)):
            return False
        try:
            said = self._answers.readline().strip()
        except OSError:  # it does not answer in time
            said = b""
        self.drop()
        return said == b"ready"

    def drop(self) -> None:
        """Closes the connection, which ends the standby, unless it has taken a run."""
        for pipe in (self._words, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def _say(self, word: str) -> bool:
        try:
            self._words.write(msgspec.json.encode(word) + b"\n")
            self._words.flush()
        except (OSError, ValueError):
            return False
        return True
