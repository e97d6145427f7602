"""Looks for checkpoints at the end of an attempt, on the node of rank 0, which writes them in most programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable

from engine.linux.processes import kill_quietly, start_process
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Any

LOOK_TIME = 5.0  # Seconds for a look. After it, the attempt is cleared without an answer: a file server may hang.


class Checkpoints:
    """Asks `engine/node/programs/checkpoints.py`, in a process of its own."""

    def __init__(self, state: NodeState, send: Callable[..., None]) -> None:
        self._state, self._send = state, send
        self._pid, self._deadline = 0, 0.0
        self._answer: Any = None
        self._then: Callable[[], None] = lambda: None

    def look(self, told_at: float, then: Callable[[], None]) -> None:
        """Starts the look, and calls `then` after its report. `told_at`: when the ranks were told to stop; 0: they were not."""
        state, ranks = self._state, self._state.ranks.values()
        ends = [rank.status or 0 for rank in ranks]
        if 0 not in state.ranks or self._pid or not (told_at or any(ends)):
            then()
            return
        question = {
            "places": state.places,
            "written": state.written,
            "ended": max(rank.ended_at for rank in ranks),
            "killed": min(ends) < 0,
            "set_aside": state.terms.get("on_torn") == "set-aside",
        }
        self._told_at, self._then, self._deadline = told_at, then, time.monotonic() + LOOK_TIME
        program = os.path.join(os.path.dirname(state.places["library"]), "checkpoints.py")
        try:
            self._answer = open(os.memfd_create("answer"), "w+")  # noqa: SIM115 - in memory: the disk may be full
            with open(os.memfd_create("question"), "w+") as file:
                json.dump(question, file)
                file.seek(0)
                self._pid = start_process([sys.executable, "-I", "-S", program], stdin=file, stdout=self._answer)
        except OSError:  # too many processes or open files
            then()

    def ended(self, pid: int) -> None:
        """Reports what was found, if it was the look that has ended."""
        if not pid or pid != self._pid:
            return
        self._pid = 0
        with self._answer as file, contextlib.suppress(ValueError):
            file.seek(0)
            found = {"told_at": self._told_at, **json.loads(file.read())}
            self._send(type="checkpoints", attempt=self._state.attempt, found=found)
        self._then()

    def watch(self) -> None:
        """Gives a look up that takes too long."""
        if self._pid and time.monotonic() > self._deadline:
            kill_quietly(self._pid, signal.SIGKILL)
            self.ended(self._pid)
