"""Reduces many similar lines to those that a curve can show: the extremes of every metric, and the first and last line.

A rank may print 100,000 lines a second; all are stored, but a curve of a few hundred columns shows only the lowest and the highest value
of many lines. If the lines of a chunk have the same format, their values are compared with fast bytes operations, and only the selected
lines are parsed. Lines of another format are always kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

MIN_SIZE = 1 << 12
"""Chunks below this size, in bytes, are not reduced."""

STEP = "step"
"""The name of the count of steps among the metrics of a line."""

MAX_COLUMNS = 4
"""Columns with the number of a metric in the first line, such as a value and its average, of which the extremes are kept."""

_IN_NUMBERS = b"0123456789.+-"
"""Characters of numbers."""

_NO_FORMAT = _IN_NUMBERS + b" #" + bytes({byte for glyph in "█▏▎▍▌▋▊▉" for byte in glyph.encode()})
"""What lines of one format may differ in: numbers, the blanks that align them, and the length of a bar."""

_PLAIN, _WITH_EXPONENTS = (
    bytes(byte if byte in _IN_NUMBERS + exponent else ord(" ") for byte in range(256)) for exponent in (b"", b"eE")
)
"""Translation tables that replace everything except numbers by spaces; without exponents there are fewer words to split."""

_FLOATS = msgspec.json.Decoder(list[float])
_EXPONENT = re.compile(rb"[\d.]e", re.IGNORECASE)


def thin(text: bytes, read: Callable[[bytes], Iterable[tuple[str, float]]]) -> bytes:
    """The lines of a chunk that its curves need.

    Args:
        text: whole lines, each with its line feed.
        read: returns the metrics of a line, by name; its step as `STEP`.

    Returns:
        The whole chunk if its lines are not similar. Otherwise, in order: the first and the last line, every line that has another
        format than the first, for each metric the lines with the lowest, the highest and the first non-finite value, and the lines around
        each place where the step begins again.
    """
    if len(text) < MIN_SIZE:
        return text
    lines = text.split(b"\n")
    lines.pop()
    metrics = list(read(lines[0] + b"\n"))
    shape = text.translate(None, _NO_FORMAT)
    first = lines[0].translate(None, _NO_FORMAT)
    unlike: set[int] = set()
    if shape != (first + b"\n") * len(lines):
        unlike = {place for place, one in enumerate(shape.split(b"\n")[:-1]) if one != first}
    if not metrics or 2 * len(unlike) > len(lines):
        return text
    alike = [place for place in range(len(lines)) if place not in unlike] if unlike else range(len(lines))
    compared = b"".join(lines[place] + b"\n" for place in alike) if unlike else text
    wanted = {0, len(lines) - 1, alike[0], alike[-1], *unlike}
    table = _Columns(compared, lines[0], len(alike))
    for name, value in metrics:
        columns = table.equal_to(value)
        if columns is None:
            return text
        places = _restarts(columns) if name == STEP else _extremes(columns)
        wanted.update(alike[place] for place in places)
    return b"".join(lines[place] + b"\n" for place in sorted(wanted))


class _Columns:
    """The numbers of lines of one format, by their place in a line.

    Args:
        text: the lines.
        first: the first of them.
        count: how many they are.
    """

    def __init__(self, text: bytes, first: bytes, count: int) -> None:
        table = _WITH_EXPONENTS if _EXPONENT.search(first) else _PLAIN
        self._words, self._first, self._count = text.translate(table).split(), first.translate(table).split(), count

    def equal_to(self, value: float) -> list[list[float]] | None:
        """The columns that hold `value` in the first line, with the numbers of all lines; None if the lines can't be compared."""
        columns = [place for place, word in enumerate(self._first) if _is(word, value)]
        if not 0 < len(columns) <= MAX_COLUMNS or len(self._words) != self._count * len(self._first):
            return None
        try:
            return [_floats(self._words[column :: len(self._first)]) for column in columns]
        except ValueError:
            return None


def _floats(words: list[bytes]) -> list[float]:
    """The numbers as floats. msgspec reads them five times faster than `float`, but only if they are written as in JSON."""
    try:
        return _FLOATS.decode(b"[" + b",".join(words) + b"]")
    except msgspec.DecodeError:
        return list(map(float, words))


def _extremes(columns: list[list[float]]) -> set[int]:
    """The lines with the lowest and the highest value of each column."""
    wanted: set[int] = set()
    for values in columns:
        if math.isfinite(sum(values)):
            wanted |= {values.index(min(values)), values.index(max(values))}
        else:
            finite = [number for number in values if math.isfinite(number)]
            odd = next((place for place, number in enumerate(values) if not math.isfinite(number)), 0)
            wanted |= {odd, *(values.index(pick(finite)) for pick in (min, max) if finite)}
    return wanted


def _restarts(columns: list[list[float]]) -> set[int]:
    """The lines before and after each place where the count of steps begins again, as it does with each epoch."""
    # A column that never changes is the number of steps, or another number that is equal only here.
    drops = [_drops(values) for values in columns if values[0] != values[-1] or min(values) < max(values)]
    fewest = min(map(len, drops), default=0)
    most = max(fewest, len(columns[0]) // 4)  # a number that is equal by chance goes up and down all the time
    return {place for column in drops if len(column) <= most for at in column for place in (at, at + 1)}


def _drops(values: list[float]) -> list[int]:
    """The places of numbers that are greater than the next one."""
    if values == sorted(values):  # nearly always, and much faster than to look at each pair
        return []
    return [at for at, (one, after) in enumerate(pairwise(values)) if after < one]


def _is(word: bytes, value: float) -> bool:
    try:
        return float(word) == value
    except ValueError:
        return False
