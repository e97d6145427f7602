"""Reduces many similar lines to those that a curve can show: the extremes of every metric, and the first and last line.

A rank may print 100,000 lines a second; all are stored, but a curve of a few hundred columns shows only the lowest and the highest value
of many lines. If the lines of a chunk have the same format, their values are compared with fast bytes operations, and only the selected
lines are parsed. Lines of another format are always kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

MIN_SIZE = 1 << 13
"""Chunks below this size, in bytes, are not reduced."""

_IN_NUMBERS = b"0123456789.+-"
"""Characters of numbers. A line without them is its format."""

_PLAIN, _WITH_EXPONENTS = (
    bytes(byte if byte in _IN_NUMBERS + exponent else ord(" ") for byte in range(256)) for exponent in (b"", b"eE")
)
"""Translation tables that replace everything except numbers by spaces; without exponents there are fewer words to split."""

_EXPONENT = re.compile(rb"[\d.]e", re.IGNORECASE)


def thin(text: bytes, read: Callable[[bytes], Iterable[tuple[str, float]]]) -> bytes:
    """The lines of a chunk that its curves need.

    Args:
        text: whole lines, each with its line feed.
        read: returns the metrics of a line, by name.

    Returns:
        The whole chunk if its lines are not similar. Otherwise, in order: the first and the last line, every line that has another
        format than the first, and for each metric the lines with the lowest, the highest and the first non-finite value.
    """
    if len(text) < MIN_SIZE:
        return text
    lines = text.split(b"\n")
    lines.pop()
    metrics = list(read(lines[0] + b"\n"))
    shape = text.translate(None, _IN_NUMBERS)
    first = lines[0].translate(None, _IN_NUMBERS)
    unlike: set[int] = set()
    if shape != (first + b"\n") * len(lines):
        unlike = {place for place, one in enumerate(shape.split(b"\n")[:-1]) if one != first}
    if not metrics or 2 * len(unlike) > len(lines):
        return text
    alike = [place for place in range(len(lines)) if place not in unlike] if unlike else range(len(lines))
    compared = b"".join(lines[place] + b"\n" for place in alike) if unlike else text
    wanted = {0, len(lines) - 1, *unlike}
    for _, value in metrics:
        places = _extremes(compared, lines[0], len(alike), value)
        if places is None:
            return text
        wanted.update(alike[place] for place in places)
    return b"".join(lines[place] + b"\n" for place in sorted(wanted))


def _extremes(text: bytes, first: bytes, count: int, value: float) -> set[int] | None:
    """The lines with the lowest and the highest value of the metric that is `value` in the first line; None if that is ambiguous."""
    table = _WITH_EXPONENTS if _EXPONENT.search(first) else _PLAIN
    words, of_first = text.translate(table).split(), first.translate(table).split()
    columns = [place for place, word in enumerate(of_first) if _is(word, value)]
    if len(columns) != 1 or len(words) != count * len(of_first):
        return None
    try:
        values = list(map(float, words[columns[0] :: len(of_first)]))
    except ValueError:
        return None
    if math.isfinite(sum(values)):
        return {values.index(min(values)), values.index(max(values))}
    finite = [number for number in values if math.isfinite(number)]
    odd = next((place for place, number in enumerate(values) if not math.isfinite(number)), 0)
    return {odd, *(values.index(pick(finite)) for pick in (min, max) if finite)}


def _is(word: bytes, value: float) -> bool:
    try:
        return float(word) == value
    except ValueError:
        return False
