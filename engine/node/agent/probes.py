"""Probes, which answer questions about the node in a process of their own, and folders for synchronised code."""

from __future__ import annotations

import os

from engine.linux.processes import MARK, start_process
from engine.node.agent.state import NodeState
from engine.node.agent.wire import MAX_FRAME, FrameBuffer, Message, encode_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROBE_SYNC = b"\0RANKDECK-PROBE 1\n"
"""A probe prints this before its answers."""


class Probes:
    """Runs probes (`engine.node.probe`)."""

    def __init__(self, state: NodeState, send: Callable[..., None]) -> None:
        self._state, self.send = state, send
        self._probes: dict[int, tuple[int, Any]] = {}
        """By pid: number of the request, and the file of the answers."""

    def start_probe(self, message: Message) -> None:
        """`probe`: starts a probe with its questions on standard input."""
        import tempfile  # not needed at boot

        questions, answers = (tempfile.TemporaryFile(dir=".") for _ in range(2))  # noqa: SIM115  one outlives this
        with questions:
            questions.writelines(encode_frame(question) for question in message["questions"])
            questions.seek(0)
            environment = {**os.environ, MARK: self._state.mark}
            pid = start_process(message["argv"], env=environment, stdin=questions, stdout=answers)
        self._probes[pid] = message["number"], answers

    def ended(self, pid: int) -> None:
        """Sends a probe's answers, if it was one that has ended."""
        if pid not in self._probes:
            return
        number, answers = self._probes.pop(pid)
        with answers:
            answers.seek(0)
            _, _, frames = answers.read(MAX_FRAME).partition(PROBE_SYNC)
            self.send(type="probed", number=number, answers=FrameBuffer().feed(frames))

    def make_folder(self, message: Message) -> None:
        """`make_folder`: creates the folder for code."""
        reason = ""
        try:
            os.makedirs(message["path"], exist_ok=True)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        self.send(type="folder", number=message["number"], reason=reason)
