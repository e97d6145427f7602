"""Thins a flood of like lines down to those that a curve can show: the extremes of every metric, and the ends.

A rank that prints 100,000 lines a second has them all stored, but a curve of a few hundred columns keeps no more than the lowest
and the highest value of many lines. So where every line of a chunk is built like its first, the values are compared at
memory speed, and only the lines that matter are read with care. A line that is built otherwise always matters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

MIN_SIZE = 1 << 14
"""Bytes below which thinning gains nothing."""

_IN_NUMBERS = b"0123456789.+-"
"""What a line's shape is without."""

_PLAIN, _WITH_EXPONENTS = (
    bytes(byte if byte in _IN_NUMBERS + exponent else ord(" ") for byte in range(256)) for exponent in (b"", b"eE")
)
"""Tables that leave nothing of a line but its numbers; without exponents there is less to take apart."""

_EXPONENT = re.compile(rb"[\d.]e", re.IGNORECASE)


def thin(text: bytes, read: Callable[[bytes], Iterable[tuple[str, float]]]) -> bytes:
    """The lines of a chunk that matter to its curves.

    Args:
        text: whole lines, each with its line feed.
        read: the metrics of a line, by name.

    Returns:
        The chunk itself where its lines are not alike; else, in their order, its first and last line, every line that is not
        built like the first, and for every metric of that the lines with the lowest and the highest value and the first that is
        not finite.
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
    """Which of these lines have the lowest and the highest value of the metric that is `value` in the first of them.

    None where that can't be told.
    """
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
