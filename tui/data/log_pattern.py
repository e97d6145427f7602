"""What a search or a filter of a log looks for: a regular expression, in lines as a terminal would show them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.core.log_levels import ERROR_EXPRESSION, ERROR_WORDS
from engine.core.terminal_text import terminal_line

LONGEST = 1_000
"""Characters of an expression."""

_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would not show as it is. Lines without it are searched as they are."""

_ESCAPED = re.compile(r"\\(?:[xuUN][0-9A-Fa-f]*|.)", re.DOTALL)

_NESTED = re.compile(r"\((?:[^()]*[^()\\])?(?:[*+]|\{\d*,\})[^()]*\)(?:[*+]|\{\d*,\})")
"""A repeat without a bound inside another one: `(a+)+`."""

_LITERAL = re.compile(r"[\w ,:;=/\"'<>%&@~-]{2,}(?![*?{])", re.ASCII)


class PatternError(ValueError):
    """A text that is no regular expression, or one that could take for ever. Its message says why."""


class Pattern:
    """A regular expression. Case counts if it has capitals.

    Args:
        text: as a user typed it.
        words: of which at least one is in every match; empty: they are found in the expression, if there are any.
        noun: what one match is called.

    Raises:
        PatternError: it can't be used.
    """

    def __init__(self, text: str, words: tuple[str, ...] = (), noun: str = "match") -> None:
        self.text = text
        self.noun = noun
        bare = _ESCAPED.sub("", text)
        self._any_case = bare == bare.lower()
        if len(text) > LONGEST:
            raise PatternError(f"more than {LONGEST} characters")
        if not words and _NESTED.search(text):
            raise PatternError("a repeat inside a repeat can take for ever")
        try:
            self._expression = re.compile(text, re.MULTILINE)
            self._marked = re.compile(text, re.IGNORECASE if self._any_case else 0)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from error
        parts = [part.lower() if self._any_case else part for part in text.split("|")]
        self._words = words or (tuple(parts) if len(parts) > 1 and all(map(_LITERAL.fullmatch, parts)) else ())
        self._literal = "" if words else _literal_of(text)

    def has(self, line: bytes) -> bool:
        """Whether a line as it was written has a match."""
        text = line.decode("ascii") if line.isascii() and _CONTROLS.search(line) is None else ""
        return self._search(text or terminal_line(line, colour=False))

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """The matches in a line as it is shown, (begin, end); none that are empty."""
        return (match.span() for match in self._marked.finditer(text) if match.end() > match.start())

    def lines(self, block: bytes) -> Iterator[int]:
        """Finds the lines of a block that match.

        Args:
            block: whole lines.

        Yields:
            The offset of the beginning of each, in bytes.
        """
        if not block.isascii() or _CONTROLS.search(block) is not None:
            offset = 0
            for line in block.split(b"\n"):
                if self.has(line):
                    yield offset
                offset += len(line) + 1
            return
        text = block.decode("ascii")
        text = text.lower() if self._any_case else text
        if self._words and not any(word in text for word in self._words):
            return
        place = 0
        while place < len(text) and (begin := self._next(text, place)) >= 0:
            start = text.rfind("\n", 0, begin) + 1
            end = text.find("\n", begin)
            end = len(text) if end < 0 else end
            # A match may have begun here and end in a later line.
            if self._expression.search(text[start:end]) is not None:
                yield start
            place = end + 1

    def _next(self, text: str, place: int) -> int:
        """Where a line may match, from `place` on; -1: nowhere. A literal is found much faster than an expression."""
        if self._literal:
            return text.find(self._literal, place)
        found = self._expression.search(text, place)
        return -1 if found is None else found.start()

    def _search(self, text: str) -> bool:
        text = text.lower() if self._any_case else text
        return self._literal in text and self._expression.search(text) is not None


def _literal_of(text: str) -> str:
    """A text that is in every match; empty: none is known."""
    if re.search(r"[|(\[{]|\\[^bBdDsSwWAZ.\-/:=\[\](){}*+?^$|]", text):
        return ""
    found = _LITERAL.findall(_ESCAPED.sub("\0", text))
    return max(found, key=len, default="")


ERRORS = Pattern(ERROR_EXPRESSION, words=ERROR_WORDS, noun="error")
"""Lines that begin to tell of an error."""
