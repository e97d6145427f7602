"""What a search or a filter of a log looks for: a regular expression, in lines as a terminal would show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress, count
from operator import add

from engine.core.log_levels import ERROR_EXPRESSION, ERROR_WORDS
from engine.core.terminal_text import terminal_line

LONGEST = 1_000
"""Characters of an expression."""

_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would not show as it is. Lines without it are searched as they are."""

_ESCAPED = re.compile(r"\\(?:[xuUN][0-9A-Fa-f]*|.)", re.DOTALL)

_NESTED = re.compile(r"\((?:[^()]*[^()\\])?(?:[*+]|\{\d*,\})[^()]*\)(?:[*+]|\{\d*,\})")
"""A repeat without a bound inside another one: `(a+)+`."""

_CROSSES_LINES = re.compile(r"\\[^bdwS.\-/:=\[\](){}*+?^$|]|\\$|\[\^|\(\?(?!:)|[^ -~]")
"""What may match a line feed, look past it, or mean something else in the middle of a text. Not all of it does."""

RARE = 8
"""A word in less than one of so many lines is looked for by itself, and the expression then only in its lines."""

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
            # To the end of the line, so that each line is found once; None: a match could go on in the next line.
            self._in_line = None if _CROSSES_LINES.search(text) else re.compile(f"(?:{text}).*", re.MULTILINE)
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

    def lines(self, block: bytes) -> Iterable[int]:
        """Finds the lines of a block that match.

        Args:
            block: whole lines.

        Returns:
            The offset of the beginning of each, in bytes.
        """
        if not block.isascii() or _CONTROLS.search(block) is not None:
            return self._line_by_line(block)
        text = block.decode("ascii")
        text = text.lower() if self._any_case else text
        if self._words and not any(word in text for word in self._words):
            return ()
        found = text.count(self._literal) if self._literal else -1
        if found == 0:
            return ()
        if self._in_line is None or 0 < found * RARE < text.count("\n"):
            return self._one_by_one(text)
        if self._literal == self.text:
            lines = text.split("\n")
            begins = map(add, accumulate(map(len, lines), initial=0), count())
            return compress(begins, [self._literal in line for line in lines])
        before = text.rfind
        # An expression that matches nothing matches twice in a line.
        return dict.fromkeys([before("\n", 0, match.start()) + 1 for match in self._in_line.finditer(text)])

    def _line_by_line(self, block: bytes) -> Iterator[int]:
        """The same where a terminal would not show a block as it is."""
        offset = 0
        for line in block.split(b"\n"):
            if self.has(line):
                yield offset
            offset += len(line) + 1

    def _one_by_one(self, text: str) -> Iterator[int]:
        """The same, going from one place that may match to the next."""
        place = 0
        while place <= len(text) and (begin := self._next(text, place)) >= 0:
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
