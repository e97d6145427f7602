"""Searches with the patterns of a profile, which may be a stranger's: one that takes too long is not used any more. A pattern with
exponential backtracking would stop the event loop for ever. Patterns run in `regex`, which has a timeout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from engine.core.metrics.lines.fields import NUMBER

if TYPE_CHECKING:
    import regex

PATTERN_TIME = 0.5
"""Seconds of processor time for one search in a piece of output, at most some 300 kB. A usual pattern takes a few milliseconds."""

Hit = tuple[int, str, float]  # position of a value, its key, and the value

_FUZZY = re.compile(rb"(?<!\\)\{(?=[^{}]*[eids][^{}]*\})")  # a number of errors in the syntax of `regex`: `{e<=1}`

_LEADING_NUMBER = re.compile(r"[\s'\"(\[=:]{0,16}(" + NUMBER + r")([kmg]?)(?![a-z0-9])")
_MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


class OwnPatterns:
    """The patterns of a run; `on_slow` is called with a pattern that is not used any more."""

    def __init__(self, on_slow: Callable[[str], None]) -> None:
        self._on_slow = on_slow
        self._slow: set[str] = set()

    def find(self, pattern: str, text: bytes) -> list[Hit]:
        """Every value of a pattern in whole lines; none if it takes, or once took, too long."""
        if pattern in self._slow:
            return []
        try:
            return list(_hits(_compiled(pattern), text))
        except TimeoutError:
            self._slow.add(pattern)
            self._on_slow(pattern)
            return []


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> regex.Pattern[bytes]:
    import regex  # takes 20 ms, and few profiles have patterns

    return regex.compile(_FUZZY.sub(rb"\\{", pattern.encode()), regex.MULTILINE)


def _hits(pattern: regex.Pattern[bytes], text: bytes) -> Iterator[Hit]:
    for found in pattern.finditer(text, timeout=PATTERN_TIME):
        for key in pattern.groupindex:
            value = found[key]
            if value is None:
                continue
            number = _LEADING_NUMBER.match(value[:200].decode("utf-8", "replace").lower())
            if number:
                yield found.start(key), key, float(number[1].replace(",", "")) * _MULTIPLES[number[2]]
