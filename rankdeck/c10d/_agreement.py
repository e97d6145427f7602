"""How the ranks of a group agree on the next operation, whatever library carries the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rankdeck.c10d._background import name_ranks

LEAVES = "leaves the group (it was destroyed there, or the script has ended)"
"""What a rank says to the others when it comes to the end: whoever means something else learns that this rank will not come."""


class NotHereError(Exception):
    """Other ranks did not come in time."""


class DisagreementError(Exception):
    """Ranks mean different things. Given what each of them means, by rank."""

    def __init__(self, meant: Sequence[str]) -> None:
        ranks: dict[str, list[int]] = {}
        for rank, text in enumerate(meant):
            ranks.setdefault(text, []).append(rank)
        found = "; ".join(f"{name_ranks(who)}: {text}" for text, who in ranks.items())
        super().__init__(f"the ranks do not agree: {found}")


class Agreement(Protocol):
    """All ranks of a group say what they are about to do."""

    def start(self, what: str, vote: int) -> None:
        """Says it to the others."""

    def reach(self, what: str, vote: int, is_over: Callable[[], bool], spin: float) -> int:
        """Says it, and waits until all others have said the same.

        Args:
            what: in words.
            vote: a number.
            is_over: whether to give up.
            spin: seconds to ask without a pause.

        Returns:
            The largest vote.

        Raises:
            NotHereError: it was over before that.
            DisagreementError: they have said something else.
        """

    def is_reached(self, what: str) -> bool:
        """After `start`: whether all have said the same. Raises what `reach` raises."""
