"""Asks ranks for their Python stacks, then processes below them, then ranks for their collectives, and collects the answers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from engine.linux.processes import all_children, below, catches, kill_quietly, process_status, program_name
from engine.node.agent.files import file_size, read_from, wake
from engine.node.agent.state import STACKS_SIGNAL, NodeState, Rank
from engine.node.agent.wire import Any, Message

MAX_ANSWER, MAX_ANSWERS = 1 << 16, 1 << 20  # of a rank's answer, and of all; JSON may take six for one byte

STACKS_TIME, COLLECTIVES_TIME = 3.0, 1.5
"""Seconds for the ranks' answers. A stopped rank does not answer, and the others' answers must not wait longer."""

CHILD_TIME, CHILDREN_TIME, MOST_CHILDREN = 0.5, 2.0, 16
"""Seconds for the answer of one process below a rank, and of all; how many processes of each rank are asked. They are asked one after the
other, because they write to the same file."""

MOST_PROGRAMS = 8  # programs below each rank, such as compilers, that are named


class Asked:
    """A rank that was asked. `path`: the file for its answer; empty if it can't answer. `child`: the process below it that was asked."""

    def __init__(self, rank: Rank, path: str, child: int = 0) -> None:
        self.rank, self.path, self.child = rank, path, child
        self.size = file_size(path)  # before its answer


class Stacks:
    """Handles one question at a time. The loop calls `collect` regularly."""

    def __init__(self, state: NodeState, send: Callable[..., None]) -> None:
        self._state, self.send = state, send
        self._asked: list[Asked] | None = None
        self._deadline = 0.0
        self._answers: list[list[Any]] | None = None
        """Stacks of the ranks, while more is asked for."""
        self._answered: list[Rank] = []
        """Ranks that are asked for collectives at the end."""
        self._rounds: list[list[Asked]] = []
        """Processes to ask, at most one of each rank at a time."""
        self._children: list[list[Any]] = []
        """Their stacks."""
        self._programs: list[list[Any]] = []
        """Processes below ranks that are no Python, such as compilers."""
        self._children_until = 0.0
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
        has_all = all(size > one.size or not one.path for size, one in zip(sizes, asked))
        if self._sizes != sizes or (not has_all and time.monotonic() < self._deadline):
            self._sizes = sizes
            return
        most = min(MAX_ANSWER, MAX_ANSWERS // max(1, len(asked)))
        texts = [read_from(one.path, one.size, most) if one.path else "" for one in asked]
        if self._answers is None:
            self._take_stacks(asked, texts)
        elif asked and asked[0].child:
            self._children += [[one.rank.number, one.child, text] for one, text in zip(asked, texts) if text]
        else:
            collectives = [[one.rank.number, text] for one, text in zip(asked, texts) if text]
            self._asked = None
            self.send(
                type="stacks",
                ranks=self._answers,
                collectives=collectives,
                children=self._children,
                programs=self._programs,
            )
            return
        self._ask_children()

    def _take_stacks(self, asked: list[Asked], texts: list[str]) -> None:
        self._answers, self._answered, self._children, self._programs = [], [], [], []
        for one, text in zip(asked, texts):
            reason = _why_silent(one.rank.pid) if one.path else "it has no handler for the signal that asks for stacks"
            self._answers.append([one.rank.number, text, "" if text else reason])
            if text or not one.path:
                self._answered.append(one.rank)
        self._rounds, self._children_until = self._rounds_of_children(), time.monotonic() + CHILDREN_TIME

    def _rounds_of_children(self) -> list[list[Asked]]:
        """Returns who is asked when: the first process below each rank, then the second of each."""
        children = all_children()
        rounds: list[list[Asked]] = []
        for rank in self._answered:
            all_below = below(rank.pid, children, set())
            found = [pid for pid in all_below if _can_answer(pid)][:MOST_CHILDREN]
            last = [pid for pid in all_below if pid not in found and pid not in children][:MOST_PROGRAMS]
            names = [(pid, program_name(pid)) for pid in last]
            self._programs += [
                [rank.number, pid, name] for pid, name in names if not name.startswith(("python", "rank"))
            ]
            for number, pid in enumerate(found):
                if number == len(rounds):
                    rounds.append([])
                rounds[number].append(Asked(rank, rank.path("stacks"), pid))
        return rounds

    def _ask_children(self) -> None:
        """Asks the next processes below ranks; after the last, ranks are asked for their collectives."""
        if not self._rounds or time.monotonic() > self._children_until:
            # Through the ranks' pipes. Stopped ranks are left out, because they would answer later, when they continue.
            candidates = [Asked(rank, rank.path("collectives")) for rank in self._answered]
            self._asked = [one for one in candidates if wake(one.rank.path("asked"))]
            self._deadline = time.monotonic() + COLLECTIVES_TIME
            return
        self._asked, self._deadline = self._rounds.pop(0), time.monotonic() + CHILD_TIME
        for one in self._asked:
            one.size = file_size(one.path)  # other processes of its rank have written since
            if _can_answer(one.child):  # or the signal would end it: it may have become another program since
                kill_quietly(one.child, STACKS_SIGNAL)


def _why_silent(pid: int) -> str:
    """Why a process with a handler does not answer, by its state; the file that it waits for, if its system call names one."""
    if (process_status(pid) or (0, ""))[1] != "D":
        return "it does not answer; it may be stopped"
    path = ""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/syscall") as call:
        path = os.readlink(f"/proc/{pid}/fd/{int(call.read().split()[1], 16)}")
    return f"it waits for a disk or a file server (state D){': ' + path if path.startswith('/') else ''}"


def _can_answer(pid: int) -> bool:
    """Whether a process writes its stack on the signal now. A stopped process would write later, in the middle of another answer."""
    status = process_status(pid)
    return status is not None and status[1] not in "Tt" and catches(pid, STACKS_SIGNAL)
