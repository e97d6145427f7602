"""Thins a flood of like lines down to those that a curve can show: the extremes of every metric, and the ends.

A rank that prints 100,000 lines a second has them all stored, but a curve of a few hundred columns keeps no more than the lowest
and the highest value of many lines. So where every line of a chunk is built like its first, the values are compared at
memory speed, and only the lines that matter are read with care. Where one line is built otherwise, nothing is thinned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

MIN_SIZE = 1 << 14
"""Bytes below which thinning gains nothing."""

_NUMBER = re.compile(rb"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?![\w.,])", re.IGNORECASE)
_MAX_CONTEXT = 48


def thin(text: bytes, read: Callable[[bytes], Iterable[tuple[str, float]]]) -> bytes:
    """The lines of a chunk that matter to its curves.

    Args:
        text: whole lines, each with its line feed.
        read: the metrics of a line, by name.

    Returns:
        The chunk itself where its lines are not alike, else its first and last line and, for every metric of the first, the
        lines with the lowest and the highest value and the first that is not finite, in their order.
    """
    if len(text) < MIN_SIZE:
        return text
    lines = text.split(b"\n")
    lines.pop()
    wanted = {0, len(lines) - 1}
    metrics = list(read(lines[0] + b"\n"))
    if not metrics:
        return text
    for _, value in metrics:
        places = _extremes(text, lines, value)
        if places is None:
            return text
        wanted |= places
    return b"".join(lines[place] + b"\n" for place in sorted(wanted))


def _extremes(text: bytes, lines: list[bytes], value: float) -> set[int] | None:
    """Where the metric that has this value in the first line is lowest and highest; None where that can't be told."""
    pattern = _pattern(lines[0], value)
    if pattern is None:
        return None
    found = pattern.findall(text)
    if len(found) != len(lines):
        return None
    try:
        values = list(map(float, found))
    except ValueError:
        return None
    if math.isfinite(sum(values)):
        return {values.index(min(values)), values.index(max(values))}
    finite = [number for number in values if math.isfinite(number)]
    odd = next((place for place, number in enumerate(values) if not math.isfinite(number)), 0)
    return {odd, *(values.index(pick(finite)) for pick in (min, max) if finite)}


def _pattern(line: bytes, value: float) -> re.Pattern[bytes] | None:
    """Finds, in every line that is built like this one, the number that is `value` here.

    It begins with a literal, which a regex engine finds at memory speed; what stands before that is looked at last.
    """
    numbers = list(_NUMBER.finditer(line))
    places = [place for place, number in enumerate(numbers) if float(number[0]) == value]
    if len(places) != 1:
        return None
    number = numbers[places[0]]
    begin = numbers[places[0] - 1].end() if places[0] else 0
    context = line[begin : number.start()]
    if not context or len(context) > _MAX_CONTEXT:
        return None
    literal = re.escape(context)
    before = rb"(?<=[0-9]" + literal + rb")" if begin else rb"(?<![^\n]" + literal + rb")"
    return re.compile(literal + before + rb"([-+.\w]+)")
