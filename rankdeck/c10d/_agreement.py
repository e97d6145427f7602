"""Before a collective, the ranks of a group agree on what they are about to do, whichever library carries the messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from rankdeck.c10d._background import name_ranks
from rankdeck.c10d._work import Votes, poll

LEAVES = "leaves the group (it was destroyed there, or the script has ended)"
"""Announcement of a rank that leaves: ranks that announce a collective learn that this rank does not take part."""

TEXT_LENGTH = 200  # bytes of its operation that a rank sends to the others after they have disagreed


class NotHereError(Exception):
    """Other ranks did not arrive in time."""


class SharedError(Exception):
    """An error that every rank of the group has, after all of its messages have arrived."""


class DisagreementError(SharedError):
    """Ranks announced different operations. `texts` has each rank's, by rank."""

    def __init__(self, texts: Sequence[str]) -> None:
        ranks: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            ranks.setdefault(text, []).append(rank)
        found = "; ".join(f"{name_ranks(who)}: {text}" for text, who in ranks.items())
        super().__init__(f"the ranks do not agree: {found}")


class Texts(Protocol):
    """An exchange of every rank's operation as text, after the ranks have disagreed."""

    def are_complete(self) -> bool:
        """Whether all texts have arrived."""

    def all(self) -> bytes:
        """TEXT_LENGTH bytes of each rank, in the order of the ranks."""


class Agreement(ABC):
    """Lets all ranks of a group announce an operation, and compares them. A subclass sends a hash of the text, and a vote."""

    _texts: Texts | None = None

    @abstractmethod
    def start(self, what: str, vote: int) -> None:
        """Announces an operation and its arguments, as text, and a number, to the other ranks, without waiting."""

    @abstractmethod
    def _is_answered(self) -> bool:
        """Whether all ranks have announced their operation."""

    @abstractmethod
    def _result(self) -> tuple[bool, Votes]:
        """Whether all ranks announced the same operation, and the votes."""

    @abstractmethod
    def _exchange_texts(self, text: bytes) -> Texts:
        """Starts the exchange of texts. `text`: this rank's, TEXT_LENGTH bytes."""

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> Votes:
        """Announces an operation, and waits until all other ranks have announced the same.

        Args:
            is_over: returns whether to give up.
            spin: seconds to poll without a pause.

        Raises:
            NotHereError: `is_over` returned True first.
            DisagreementError: other ranks announced something else.
        """
        self.start(what, vote)
        self._wait(self._is_answered, is_over, spin)
        is_same, votes = self._result()
        if not is_same:
            # Kept in an attribute, because the library may still write to it after this rank has given up.
            self._texts = texts = self._exchange_texts(_encode(what))
            self._wait(texts.are_complete, is_over, spin)
            raise DisagreementError(_decode(texts.all()))
        return votes

    def is_reached(self, what: str) -> bool:
        """After `start`: whether all ranks have announced the same operation. Raises DisagreementError if they have not."""
        if self._texts is None:
            if not self._is_answered():
                return False
            if self._result()[0]:
                return True
            self._texts = self._exchange_texts(_encode(what))
        if self._texts.are_complete():
            raise DisagreementError(_decode(self._texts.all()))
        return False

    def _wait(self, is_done: Callable[[], bool], is_over: Callable[[], bool], spin: float) -> None:
        if not poll(is_done, is_over, spin):
            raise NotHereError


def _encode(what: str) -> bytes:
    return what.encode()[:TEXT_LENGTH].ljust(TEXT_LENGTH)


def _decode(texts: bytes) -> list[str]:
    pieces = (texts[start : start + TEXT_LENGTH] for start in range(0, len(texts), TEXT_LENGTH))
    return [piece.decode(errors="replace").rstrip() for piece in pieces]
