"""The pattern of a search or a filter of a log: a regular expression, in lines as a terminal would show them. `re` can take longer than
anybody waits, with no other thread running meanwhile. Patterns that could be slow run in `regex`, which lets other threads run and has a
timeout; it is half as fast."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, compress, count
from operator import add
from typing import NamedTuple, Protocol

from engine.core.log_levels import ERROR_EXPRESSION, ERROR_WORDS
from engine.core.terminal_text import terminal_line

LONGEST = 1_000  # characters of an expression

_CONTROLS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a terminal would not show as they are. Lines without them are searched as they are."""

_ESCAPED = re.compile(r"\\(?:[xuUN][0-9A-Fa-f]*|.)", re.DOTALL)

_CROSSES_LINES = re.compile(r"\\[^bdwS.\-/:=\[\](){}*+?^$|]|\\$|\[\^|\(\?(?!:)|[^ -~]")
"""Parts that may match a line feed, look past it, or mean something else in the middle of a text. Some of them do not."""

RARE = 8  # a word in less than one of so many lines is sought first, the expression then in those lines only
LONG = 512  # characters of a line in which a repeat can take long

SECONDS, LINE_SECONDS = 1.0, 0.1
"""Processor time of one search in a block, and in a line that is drawn; `regex` measures the time of the whole process."""

_FUZZY = re.compile(r"(?<!\\)\{(?=[^{}]*[eids][^{}]*\})")  # a number of errors in the syntax of `regex`: `{e<=1}`

_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_REPEAT = re.compile(r"[*+]|\{\d*,?\d*\}")
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{)")

_LITERAL = re.compile(r"[\w ,:;=/\"'<>%&@~-]{2,}(?![*?{])", re.ASCII)


class PatternError(ValueError):
    """A text that is no regular expression, or too long a one. Its message says why."""


class _Expression(Protocol):
    """What `re` and `_Bounded` have in common."""

    def search(self, text: str, place: int = 0, /) -> re.Match[str] | None: ...

    def finditer(self, text: str, /) -> Iterator[re.Match[str]]: ...


class _Bounded:
    """An expression of `regex`. Its searches raise TimeoutError after `SECONDS`, in drawn lines after `LINE_SECONDS`."""

    def __init__(self, text: str, flags: int) -> None:
        import regex

        try:
            self._expression = regex.compile(_FUZZY.sub(r"\\{", text), flags)
        except regex.error as error:
            raise PatternError(str(error)) from error
        self._seconds = SECONDS if flags & re.MULTILINE else LINE_SECONDS

    def search(self, text: str, place: int = 0, /) -> re.Match[str] | None:
        found: re.Match[str] | None = self._expression.search(text, place, timeout=self._seconds, concurrent=True)
        return found

    def finditer(self, text: str, /) -> Iterator[re.Match[str]]:
        found: Iterator[re.Match[str]] = self._expression.finditer(text, timeout=self._seconds, concurrent=True)
        return found


class _Compiled(NamedTuple):
    """The expression for lines in lower case if case does not count, for lines as they are, and for whole blocks."""

    plain: _Expression
    marked: _Expression
    in_line: _Expression | None
    """To the end of the line, so that each line is found once; None: a match could go on in the next line."""


class Pattern:
    """A regular expression. Case counts if it has capitals. `words`: every match has at least one of them; empty: they are found in
    the expression, if there are any. `noun`: what one match is called. Raises PatternError: it can't be used."""

    def __init__(self, text: str, words: tuple[str, ...] = (), noun: str = "match") -> None:
        self.text = text
        self.noun = noun
        bare = _ESCAPED.sub("", text)
        self._any_case = bare == bare.lower()
        if len(text) > LONGEST:
            raise PatternError(f"more than {LONGEST} characters")
        try:
            self._fast = self._compiled(re.compile)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from error
        self._repeats = 0 if words else _repeats(text)
        self._sure = self._compiled(_Bounded) if self._repeats else self._fast
        self.is_slow = False  # whether a search took too long; it finds nothing from then on
        parts = [part.lower() if self._any_case else part for part in text.split("|")]
        self._words = words or (tuple(parts) if len(parts) > 1 and all(map(_LITERAL.fullmatch, parts)) else ())
        self._literal = "" if words else _literal_of(text)

    def _compiled(self, compiled: Callable[[str, int], _Expression]) -> _Compiled:
        text = self.text
        in_line = None if _CROSSES_LINES.search(text) else compiled(f"(?:{text}).*", re.MULTILINE)
        return _Compiled(compiled(text, re.MULTILINE), compiled(text, re.IGNORECASE if self._any_case else 0), in_line)

    def _for(self, lines: str) -> _Compiled:
        """The expressions for some lines. A repeat that could go on in the next line counts as in one long line."""
        if not self._repeats:
            return self._fast
        is_short = len(lines) <= LONG or (self._fast.in_line is not None and not _has_long_line(lines, 2 * LONG))
        return self._fast if self._repeats == 1 and is_short else self._sure

    def has(self, line: bytes) -> bool:
        """Whether a line, with its control sequences, has a match."""
        if self.is_slow:
            return False
        text = line.decode("ascii") if line.isascii() and _CONTROLS.search(line) is None else ""
        try:
            return self._search(text or terminal_line(line, colour=False))
        except TimeoutError:
            self.is_slow = True
            return False

    def places(self, text: str) -> list[tuple[int, int]]:
        """The matches in a line as it is shown, (begin, end); none that are empty."""
        if self.is_slow:
            return []
        try:
            found = [match.span() for match in self._for(text).marked.finditer(text)]
        except TimeoutError:
            self.is_slow = True
            return []
        return [(begin, end) for begin, end in found if end > begin]

    def lines(self, block: bytes) -> Iterable[int]:
        """Finds the lines of a block of whole lines that match. Returns the offset of each, in bytes."""
        if self.is_slow:
            return ()
        try:
            return list(self._lines(block))
        except TimeoutError:
            self.is_slow = True
            return ()

    def _lines(self, block: bytes) -> Iterable[int]:
        if not block.isascii() or _CONTROLS.search(block) is not None:
            return self._line_by_line(block)
        text = block.decode("ascii")
        text = text.lower() if self._any_case else text
        if self._words and not any(word in text for word in self._words):
            return ()
        found = text.count(self._literal) if self._literal else -1
        if found == 0:
            return ()
        used = self._for(text)
        if used.in_line is None or 0 < found * RARE < text.count("\n"):
            return self._one_by_one(text, used.plain)
        if self._literal == self.text:
            lines = text.split("\n")
            begins = map(add, accumulate(map(len, lines), initial=0), count())
            return compress(begins, [self._literal in line for line in lines])
        before = text.rfind
        # An expression that matches an empty text matches several times in a line.
        return dict.fromkeys([before("\n", 0, match.start()) + 1 for match in used.in_line.finditer(text)])

    def _line_by_line(self, block: bytes) -> Iterator[int]:
        """The same for a block that a terminal would not show as it is."""
        offset = 0
        for line in block.split(b"\n"):
            if self.has(line):
                yield offset
            offset += len(line) + 1

    def _one_by_one(self, text: str, plain: _Expression) -> Iterator[int]:
        """The same, but looks only at lines in which a match may begin."""
        place = 0
        while place <= len(text) and (begin := self._next(text, place, plain)) >= 0:
            start = text.rfind("\n", 0, begin) + 1
            end = text.find("\n", begin)
            end = len(text) if end < 0 else end
            # A match may have begun here and end in a later line.
            if plain.search(text[start:end]) is not None:
                yield start
            place = end + 1

    def _next(self, text: str, place: int, plain: _Expression) -> int:
        """Where a line may match, from `place` on; -1: nowhere. A literal is found much faster than an expression."""
        if self._literal:
            return text.find(self._literal, place)
        found = plain.search(text, place)
        return -1 if found is None else found.start()

    def _search(self, text: str) -> bool:
        text = text.lower() if self._any_case else text
        return self._literal in text and self._for(text).plain.search(text) is not None


def _has_long_line(lines: str, length: int) -> bool:
    """Whether a line may have `length` characters; false where all have fewer than half of that."""
    half = length // 2
    return any(lines.find("\n", begin, begin + half) < 0 for begin in range(0, len(lines) - half, half))


def _repeats(text: str) -> int:
    """How many repeats an expression tries one inside the other: 0, 1 or 2, which stands for more too. In a short line, what begins with
    a literal begins at few places."""
    bare = _CLASS.sub("x", _ESCAPED.sub("x", text))
    if _REPEATED_GROUP.search(bare):
        return 2
    begins = "|" not in bare and _LITERAL.match(text) is not None
    found = len(_REPEAT.findall(bare))
    return min(2, found, max(1, found - begins))


def _literal_of(text: str) -> str:
    """A text that is in every match; empty: none is known."""
    if re.search(r"[|(\[{]|\\[^bBdDsSwWAZ.\-/:=\[\](){}*+?^$|]", text):
        return ""
    found = _LITERAL.findall(_ESCAPED.sub("\0", text))
    return max(found, key=len, default="")


ERRORS = Pattern(ERROR_EXPRESSION, words=ERROR_WORDS, noun="error")  # lines that begin to tell of an error
