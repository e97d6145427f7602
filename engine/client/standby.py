"""The front end's side of a standby, which makes a launch faster. `engine.supervisor.standby.waiting` is the other side."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from typing import IO

import msgspec

from engine.client.starting import start_detached
from engine.core.plan.plan import LaunchPlan
from engine.core.plan.standby import can_stand_by, standby_key
from engine.linux.sockets import peer_of
from engine.runs.paths import RunPaths
from engine.runs.standbys import circumstances, new_standby, standbys

ANSWER_TIME = 20.0
"""Seconds in which a standby that stayed after an earlier launch takes a run. After that the launch goes on without it."""


class Standby:
    """A supervisor without a run.

    Args:
        key: Key of the launches that it serves.
        words, answers: the pipes or the socket to it.
    """

    def __init__(self, key: str, words: IO[bytes], answers: IO[bytes]) -> None:
        self._key, self._words, self._answers = key, words, answers

    @classmethod
    def start(cls, plan: LaunchPlan) -> Standby:
        """Starts a standby that ends with this process.

        Args:
            plan: Plan of the run that may be launched.
        """
        paths = new_standby(plan)
        process = start_detached(paths, ["standby", str(paths.folder)], stdin=subprocess.PIPE)
        process.wait()  # its child keeps running
        assert process.stdin is not None
        assert process.stdout is not None
        return cls(standby_key(plan, circumstances()), process.stdin, process.stdout)

    @classmethod
    def find(cls, plan: LaunchPlan) -> Standby | None:
        """One that stayed after an earlier launch and can serve this one; None: there is none."""
        waiting = [standing for _, standing in standbys() if standing.socket]
        if not (waiting and can_stand_by(plan)):
            return None
        key = standby_key(plan, circumstances())
        for standing in waiting:
            if standing.key == key and (wire := _connect(standing.socket)) is not None:
                with wire:  # the files keep it open
                    return cls(key, wire.makefile("wb"), wire.makefile("rb"))
        return None

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
        """Closes the connection. A standby of this process ends; a standby that stayed after a launch waits for the next."""
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


def _connect(path: str) -> socket.socket | None:
    """Connects to a standby; None: it has just ended, or its socket is another user's."""
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.settimeout(ANSWER_TIME)
    with contextlib.suppress(OSError):
        wire.connect(path)
        if peer_of(wire)[1] == os.geteuid():
            return wire
    wire.close()
    return None
