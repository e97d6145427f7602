"""Reduces many similar lines to those that a curve can show: the extremes of every metric, and the first and last line.

A rank may print 100,000 lines a second; all are stored, but a curve of a few hundred columns shows only the lowest and the highest value
of many lines. The lines of a chunk that have the same format are compared with fast bytes operations, and only the selected ones are
parsed. Lines of a rare format are always kept.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

MIN_SIZE = 1 << 12  # chunks below this size, in bytes, are not reduced
MIN_LINES = 16  # lines of one format, below which all are kept
STEP, EPOCH = "step", "epoch"  # the names of the counts of a line, among its metrics
_IN_NUMBERS = b"0123456789.+-"  # characters of numbers

_NO_FORMAT = _IN_NUMBERS + b" #" + bytes({byte for glyph in "█▏▎▍▌▋▊▉" for byte in glyph.encode()})
"""Bytes that may differ between lines of one format: numbers, the blanks that align them, and the length of a bar."""

_PLAIN, _WITH_EXPONENTS = (
    bytes(byte if byte in _IN_NUMBERS + exponent else ord(" ") for byte in range(256)) for exponent in (b"", b"eE")
)
"""Translation tables that replace everything except numbers by spaces; without exponents there are fewer words to split."""

_FLOATS = msgspec.json.Decoder(list[float])
_EXPONENT = re.compile(rb"[\d.]e", re.IGNORECASE)
_WORD = re.compile(rb"[^ ]+")
_THOUSANDS = re.compile(rb"\d{1,3}(?:,\d{3})*(?!\d)")

Places = Callable[[bytes], Sequence[tuple[str, int]]]
"""Finds the metrics of a line: the name of each, and the offset of a digit of its number. Its step is `STEP`,
its epoch `EPOCH`. Empty: all lines of this format are needed."""


def thin(text: bytes, places: Places) -> bytes:
    """The lines of a chunk that its curves need. `places`: finds the metrics in a line; they stand alike in all lines of its format. Returns
    in order: the first and the last line, all lines of rare formats, and of each other format the first and the last line, for each metric
    the lines with the lowest, the highest and the first non-finite value, and the lines around each place where the step begins again or
    the epoch changes."""
    if len(text) < MIN_SIZE:
        return text
    lines = text.split(b"\n")
    lines.pop()
    formats = text.translate(None, _NO_FORMAT)
    first = lines[0].translate(None, _NO_FORMAT)
    if formats == (first + b"\n") * len(lines):
        wanted = _wanted(lines, text, places)
        return text if wanted is None else b"".join([lines[place] + b"\n" for place in sorted(wanted)])
    groups: dict[bytes, list[int]] = {}
    for place, one in enumerate(formats.split(b"\n")[:-1]):
        if one in groups:
            groups[one].append(place)
        else:
            groups[one] = [place]
    kept = {0, len(lines) - 1}
    for group in groups.values():
        alike = [lines[place] for place in group]
        found = _wanted(alike, b"\n".join(alike), places) if len(group) >= MIN_LINES else None
        kept.update(group if found is None else [group[at] for at in found])
    return text if len(kept) == len(lines) else b"".join([lines[place] + b"\n" for place in sorted(kept)])


def _wanted(lines: list[bytes], text: bytes, places: Places) -> set[int] | None:
    """The places of the needed lines among lines of one format, without line feeds; None: all are needed. See `thin`."""
    wanted = {0, len(lines) - 1}
    table = _Columns(text, lines[0], len(lines))
    metrics = [
        (name, table.at(begin) if name in _BREAKS else table.with_thousands(begin, lines[0]))
        for name, begin in places(lines[0])
    ]
    for name, column in metrics:
        if column is None:
            return None
        if name in _BREAKS:
            # two lines before the end of an epoch tell how far one step is from the next
            around = (-1, 0, 1) if name == STEP else (0, 1)
            wanted |= {at + one for at in _BREAKS[name](column) for one in around if at + one >= 0}
        else:
            wanted |= _extremes(column)
    return wanted if metrics else None


class _Columns:
    """The numbers of lines of one format, by their place in a line."""

    def __init__(self, text: bytes, first: bytes, count: int) -> None:
        table = _WITH_EXPONENTS if _EXPONENT.search(first) else _PLAIN
        self._words, self._first = text.translate(table).split(), list(_WORD.finditer(first.translate(table)))
        self._is_regular = len(self._words) == count * len(self._first)

    def at(self, begin: int) -> list[float] | None:
        """The numbers of all lines in the column of the number that has byte `begin` of the first line; None: they can't be compared."""
        column = next((place for place, word in enumerate(self._first) if word.start() <= begin < word.end()), None)
        return None if column is None else self._numbers(column)

    def with_thousands(self, begin: int, first: bytes) -> list[float] | None:
        """Like `at`, for a number with thousands separators, which split it into several words: `1,234.5` in the first line."""
        found = _THOUSANDS.match(first, begin)
        numbers = self.at(begin)
        for after in [at for at in range(begin, found.end()) if first[at] == ord(",")] if found else []:
            lower = self.at(after + 1)
            if numbers is None or lower is None:
                return None
            numbers = [high * 1000 + (low if high >= 0 else -low) for high, low in zip(numbers, lower, strict=True)]
        return numbers

    def _numbers(self, column: int) -> list[float] | None:
        try:
            return _floats(self._words[column :: len(self._first)]) if self._is_regular else None
        except ValueError:
            return None


def _floats(words: list[bytes]) -> list[float]:
    """The numbers as floats. msgspec reads them five times faster than `float`, but only if they are written as in JSON."""
    try:
        return _FLOATS.decode(b"[" + b",".join(words) + b"]")
    except msgspec.DecodeError:
        return list(map(float, words))


def _extremes(values: list[float]) -> set[int]:
    """The lines with the lowest and the highest value, and the first that is not finite."""
    if math.isfinite(sum(values)):
        return {values.index(min(values)), values.index(max(values))}
    finite = [number for number in values if math.isfinite(number)]
    odd = next((place for place, number in enumerate(values) if not math.isfinite(number)), 0)
    return {odd, *(values.index(pick(finite)) for pick in (min, max) if finite)}


def _drops(values: list[float]) -> list[int]:
    """The places of numbers that are greater than the next one."""
    if values == sorted(values):  # nearly always, and much faster than to look at each pair
        return []
    return [at for at, (one, after) in enumerate(pairwise(values)) if after < one]


def _changes(values: list[float]) -> list[int]:
    """The places of numbers whose whole part is not that of the next one."""
    whole = [value // 1 for value in values]
    return [at for at, (one, after) in enumerate(pairwise(whole)) if after != one]


_BREAKS = {STEP: _drops, EPOCH: _changes}
