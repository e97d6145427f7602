"""Before a collective, the ranks of a group agree on what they are about to do, whichever library carries the messages. A rank that has waited
for the others until its timeout finds out which of them are absent."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from rankdeck.c10d._arguments import ANSWERS, QUESTIONS, TEXTS, reserved_tag
from rankdeck.c10d._background import name_ranks
from rankdeck.c10d._work import Messages, Request, Votes, poll

LEAVES = "leaves the group (it was destroyed there, or the script has ended)"
"""Announcement of a rank that leaves: ranks that announce a collective learn that this rank does not take part."""

TEXT_LENGTH = 200  # bytes of its operation that a rank sends to the others after they have disagreed


class NotHereError(Exception):
    """Other ranks did not arrive in time."""


class SharedError(Exception):
    """An error that every rank of the group has, after all of its messages have arrived."""


class DisagreementError(SharedError):
    """Ranks announced different operations. `texts`: what each rank announced, in the order of ranks."""

    def __init__(self, texts: Sequence[str]) -> None:
        ranks: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            ranks.setdefault(text, []).append(rank)
        found = "; ".join(f"{name_ranks(who)}: {text}" for text, who in ranks.items())
        super().__init__(f"the ranks do not agree: {found}")


class _Texts:
    """An exchange of every rank's operation as text, after the ranks have disagreed."""

    def __init__(self, messages: Messages, rank: int, size: int, text: str) -> None:
        self._rows = torch.zeros(size, TEXT_LENGTH, dtype=torch.uint8)
        encoded = text.encode()[:TEXT_LENGTH].ljust(TEXT_LENGTH)
        self._rows[rank] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        tag = reserved_tag(messages.tags, TEXTS)
        others = [other for other in range(size) if other != rank]
        self._pending = [messages.receive(self._rows[other], other, tag) for other in others]
        self._pending += [messages.send(self._rows[rank], other, tag) for other in others]

    def are_complete(self) -> bool:
        self._pending = [one for one in self._pending if not one.is_done()]
        return not self._pending

    def all(self) -> list[str]:
        return [bytes(row.tolist()).decode(errors="replace").rstrip() for row in self._rows]


class Agreement(ABC):
    """Lets all ranks of a group announce an operation, and compares them. A subclass sends a hash of the text, and a vote."""

    _texts: _Texts | None = None
    waited = 0.0  # seconds that this rank has waited here for others; no clocks are compared: who waits least has arrived last

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        self.size = size
        self.roll_call = RollCall(messages, rank, size)
        self._begin_texts = functools.partial(_Texts, messages, rank, size)

    @abstractmethod
    def start(self, what: str, vote: int) -> None:
        """Announces an operation and its arguments, as text, and a number, to the other ranks, without waiting."""

    @abstractmethod
    def _is_answered(self) -> bool:
        """Whether all ranks have announced their operation."""

    @abstractmethod
    def _result(self) -> Votes | None:
        """Returns the votes, if all ranks announced the same operation."""

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> Votes:
        """Announces an operation, and waits until all other ranks have announced the same. `is_over`: returns whether to give up. `spin`: seconds to poll
        without a pause. Raises NotHereError: `is_over` returned True first; DisagreementError: other ranks announced something else."""
        self.roll_call.announced += 1
        self.start(what, vote)
        if not self._is_answered():
            began = time.monotonic()
            self._wait(self._is_answered, is_over, spin)
            self.waited += time.monotonic() - began
        votes = self._result()
        if votes is None:
            # Kept in an attribute, because the library may still write to it after this rank has given up.
            self._texts = texts = self._begin_texts(what)
            self._wait(texts.are_complete, is_over, spin)
            raise DisagreementError(texts.all())
        return votes

    def is_reached(self, what: str) -> bool:
        """After `start`: whether all ranks have announced the same operation. Raises DisagreementError if they have not."""
        if self._texts is None:
            if not self._is_answered():
                return False
            if self._result() is not None:
                return True
            self._texts = self._begin_texts(what)
        if self._texts.are_complete():
            raise DisagreementError(self._texts.all())
        return False

    def _wait(self, is_done: Callable[[], bool], is_over: Callable[[], bool], spin: float) -> None:
        if not poll(is_done, is_over, spin):
            raise NotHereError


ASKING_TIME = 1.0
"""Seconds to wait for answers. Background threads look for questions every 0.25 s."""


class RollCall:
    """Finds out which ranks of a group are absent: a rank asks the others how many collectives they have announced. Each rank answers in its
    background thread, so a busy script does not delay the answer. `announced`: number of this rank's collectives."""

    def __init__(self, messages: Messages, rank: int, size: int) -> None:
        self.announced = 0
        self._messages = messages
        self._others = [other for other in range(size) if other != rank]
        self._questions, self._answers = (reserved_tag(messages.tags, use) for use in (QUESTIONS, ANSWERS))
        self._lock = threading.Lock()
        self._kept: list[object] = []  # memory of messages, to which the library may still write
        self._asked: Request | None = self._listen() if self._others else None

    def _listen(self) -> Request:
        self._question = torch.zeros(1, dtype=torch.int64)
        return self._messages.receive(self._question, None, self._questions)

    def _send(self, rank: int, tag: int) -> None:
        count = torch.tensor([self.announced])
        self._kept.append((count, self._messages.send(count, rank, tag)))

    def answer(self) -> None:
        """Answers the questions that have come. The background thread calls this again and again."""
        with self._lock, contextlib.suppress(Exception):  # a peer is gone: nobody waits for an answer then
            while self._asked is not None and self._asked.is_done():
                self._send(self._asked.source, self._answers)
                self._asked = self._listen()

    def absent(self) -> str:
        """Asks the other ranks. Returns who has not come to this rank's newest collective, as words; empty: nobody."""
        counts = {rank: torch.zeros(1, dtype=torch.int64) for rank in self._others}
        answers = {rank: self._messages.receive(count, rank, self._answers) for rank, count in counts.items()}
        for rank in self._others:
            self._send(rank, self._questions)

        def have_all_answered() -> bool:
            for rank in [rank for rank, answer in answers.items() if _is_done(answer)]:
                del answers[rank]
            return not answers

        end = time.monotonic() + ASKING_TIME
        poll(have_all_answered, lambda: time.monotonic() > end)
        silent = sorted(answers)
        for answer in answers.values():
            _cancel(answer)
        self._kept.append((counts, answers))
        late = [rank for rank in self._others if rank not in silent and int(counts[rank]) < self.announced]
        found = [(late, "not called it"), (silent, "not answered")]
        return ", and ".join(
            f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {words}" for ranks, words in found if ranks
        )

    def end(self) -> None:
        """Cancels the receive of questions. Nothing is answered any more."""
        with self._lock:
            asked, self._asked = self._asked, None
            if asked is not None:
                _cancel(asked)


def _cancel(message: Request) -> None:
    with contextlib.suppress(Exception):
        message.cancel()
        poll(message.is_done, lambda: True)


def _is_done(answer: Request) -> bool:
    with contextlib.suppress(Exception):  # its rank is gone
        return answer.is_done()
    return False
