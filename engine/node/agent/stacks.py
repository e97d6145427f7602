"""Asks ranks for their Python stacks, then for their collectives, and collects the answers."""

from __future__ import annotations

import signal
import time

from engine.node.agent.files import file_size, read_from, wake
from engine.node.agent.processes import catches, kill_quietly
from engine.node.agent.state import NodeState, Rank
from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Makes a rank write its Python stacks; the same as in `template.py` and the rank package."""

MAX_ANSWER, MAX_ANSWERS = 1 << 16, 1 << 20
"""Bytes of a rank's answer, and of all answers together. JSON may take six bytes for one."""

STACKS_TIME, COLLECTIVES_TIME = 3.0, 1.5
"""Seconds for the ranks' answers. A stopped rank does not answer, and the others' answers must not wait longer."""


class Asked:
    """A rank that was asked. `path`: the file for its answer; empty if it can't answer."""

    def __init__(self, rank: Rank, path: str) -> None:
        self.rank, self.path = rank, path
        self.size = file_size(path)  # before its answer


class Stacks:
    """Handles one question at a time. The loop calls `collect` regularly."""

    def __init__(self, state: NodeState, send: Callable[..., None]) -> None:
        self._state, self.send = state, send
        self._asked: list[Asked] | None = None
        self._deadline = 0.0
        self._answers: list[list[Any]] | None = None
        """Stacks of the ranks, while they are asked for collectives."""
        self._sizes: list[int] = []

    def ask_stacks(self, message: Message) -> None:
        """`stacks`: asks every rank by a signal. Collectives come after that, because faulthandler crashes if the thread that
        answers runs meanwhile (seen with Python 3.11)."""
        asked = []
        for rank in self._state.running():
            can_answer = catches(rank.pid, STACKS_SIGNAL)
            asked.append(Asked(rank, rank.path("stacks") if can_answer else ""))
            if can_answer:
                kill_quietly(rank.pid, STACKS_SIGNAL)
        self._answers, self._asked, self._deadline = None, asked, time.monotonic() + STACKS_TIME

    def collect(self) -> None:
        """Continues when every rank has answered and no answer grows, or when time is up."""
        if self._asked is None:
            return
        asked = self._asked
        sizes = [file_size(one.path) for one in asked]
        has_all = all(size > one.size or not one.path for size, one in zip(sizes, asked))  # noqa: B905 - Python 3.8
        if self._sizes != sizes or (not has_all and time.monotonic() < self._deadline):
            self._sizes = sizes
            return
        most = min(MAX_ANSWER, MAX_ANSWERS // max(1, len(asked)))
        texts = [read_from(one.path, one.size, most) if one.path else "" for one in asked]
        if self._answers is None:
            self._answers = []
            answered = []
            for one, text in zip(asked, texts):  # noqa: B905
                reason = "it does not answer; it may be stopped" if one.path else "its Python was not prepared for it"
                self._answers.append([one.rank.number, text, "" if text else reason])
                if text or not one.path:
                    answered.append(one.rank)
            self._ask_collectives(answered)
        else:
            collectives = [[one.rank.number, text] for one, text in zip(asked, texts) if text]  # noqa: B905
            self._asked = None
            self.send(type="stacks", ranks=self._answers, collectives=collectives)

    def _ask_collectives(self, answered: list[Rank]) -> None:
        """Asks through the ranks' pipes. Stopped ranks are left out, because they would answer later, when they continue."""
        candidates = [Asked(rank, rank.path("collectives")) for rank in answered]
        self._asked = [one for one in candidates if wake(one.rank.path("asked"))]
        self._deadline = time.monotonic() + COLLECTIVES_TIME
