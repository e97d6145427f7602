"""The border of a log, in words."""

from typing import Literal

from tui.data.log.filter import LogFilter
from tui.data.log.pattern import Pattern
from tui.data.log.search import Found


def search_words(
    pattern: Pattern | None, found: Found | None, wrapped: Literal["", "first", "last"], error: str
) -> str:
    """A search in words; empty: there is none."""
    if error:
        return f"can't be sought: {error}"
    if found is None or pattern is None:
        return ""
    noun, of = pattern.noun, f" for '{pattern.text}'" if pattern.noun == "match" else ""
    if found.place is None:
        return f"no {noun}{of}" if found.whole else f"searching{of}"
    number = noun if found.number is None else f"{noun} {found.number:,}"
    turn = f"wrapped to the {wrapped}: " if wrapped else ""
    return f"{turn}{number} of {found.matches:,}{'' if found.whole else '+'}{of}"


def empty_words(shown: LogFilter, *, whole: bool) -> str:
    """The text of a log without lines. `whole`: all of the log was read."""
    if not whole:
        return "Reading." if shown.is_empty else "Looking for lines that the filter shows."
    return "The log is empty." if shown.is_empty else "The filter shows no line."
