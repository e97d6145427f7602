"""Finds known failures in a text. The failures themselves are data, in `engine.core.causes`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from engine.core.failures.causes import CAUSES
from engine.core.failures.causes.cause import Cause, Kind

MAX_WORD = 200
"""Characters of what a text contributes to a sentence about it."""


class Found(NamedTuple):
    """A known failure, as a text shows it."""

    cause: Cause
    words: dict[str, str]
    line: str
    """The line that shows it."""

    @property
    def detail(self) -> str:
        """What it means, or nothing where the program says it best."""
        return self.cause.detail.format_map(self.words)

    @property
    def advice(self) -> str:
        """What helps."""
        return self.cause.advice.format_map(self.words)

    @property
    def fix(self) -> str:
        """The line to be copied. What comes from the text is one word to a shell."""
        return self.cause.fix.format_map({name: shlex.quote(word) for name, word in self.words.items()})

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks whose fault it is, where the text says so."""
        named = (word for name, word in self.words.items() if name.startswith("rank"))
        return frozenset(int(number) for word in named for number in re.findall(r"\d{1,9}", word))


def find(text: str, kind: Kind = "cause", *, letters: str = "") -> Found | None:
    """The most special known failure of a kind that a text shows, or None.

    Args:
        text: of any length, with `\\n` as the only line end.
        kind: of the failure.
        letters: with which its id begins; empty: with any.
    """
    general: Found | None = None
    for cause in CAUSES:
        if cause.kind != kind or (letters and cause.id[0] not in letters):
            continue
        if general and (cause.general or cause.id[0] not in general.cause.general):
            continue
        if found := _search(cause, text):
            if not cause.general:
                return found
            general = found
    return general


def find_all(text: str, kind: Kind) -> Iterator[Found]:
    """Every failure of a kind that a text shows, each as often as it does."""
    for cause in CAUSES:
        if cause.kind == kind:
            for match in _compiled(cause.pattern).finditer(text):
                yield _found(cause, text, match)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled when it is first wanted: all of them together take as long as starting a program."""
    return re.compile(pattern, re.MULTILINE)


def _search(cause: Cause, text: str) -> Found | None:
    match = _compiled(cause.pattern).search(text)
    return _found(cause, text, match) if match else None


def _found(cause: Cause, text: str, match: re.Match[str]) -> Found:
    words = {name: " ".join((word or "").split())[:MAX_WORD] for name, word in match.groupdict().items()}
    begin = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.start())
    return Found(cause, words, text[begin : end if end >= 0 else len(text)])
