"""What the border of a log says."""

from __future__ import annotations

from typing import Literal

from tui.data.log_search import Found


def search_words(sought: str, found: Found | None, wrapped: Literal["", "first", "last"], error: str) -> str:
    """A search in words; empty: there is none.

    Args:
        sought: the regular expression.
        found: what was found so far.
        wrapped: the match was found from the other end of the log.
        error: why what the user typed is no regular expression.
    """
    if error:
        return f"can't be sought: {error}"
    if found is None:
        return ""
    so_far = "" if found.whole else "+"
    if found.place is None:
        return f"no match for {sought!r}" if found.whole else f"searching {sought!r}"
    number = "match" if found.number is None else f"match {found.number:,}"
    turn = f"wrapped to the {wrapped}: " if wrapped else ""
    return f"{turn}{number} of {found.matches:,}{so_far} for {sought!r}"
