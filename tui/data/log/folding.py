"""Lines that several ranks have printed alike, held once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

WINDOW = 1_000  # lines in which the ranks have printed the same line, at most


class Line(NamedTuple):
    """A line of a merged log. `source`: index of its file. `end`: offset after it there. `others`: the same offset in the files of other
    ranks that have the same line, where it is held once."""

    source: int
    data: bytes
    end: int
    others: Mapping[int, int] = {}

    def ends(self) -> list[tuple[int, int]]:
        """(file, offset) after it, in each of its files."""
        return [(self.source, self.end), *self.others.items()]


class Folding:
    """Folds the lines of a log in their order."""

    def __init__(self, ranks: Sequence[int | None]) -> None:
        self._ranks = ranks
        self._seen: dict[bytes, tuple[int, Line, set[int | None]]] = {}
        """The newest line with a text: its number, itself, and who has printed it."""

    def fold(self, lines: list[Line], first: int) -> tuple[list[Line], dict[int, Line]]:
        """Folds lines that follow those before. Returns the lines that stay, and by their number those from before that have become lines
        of more ranks."""
        kept: list[Line] = []
        changed: dict[int, Line] = {}
        for line in lines:
            rank = self._ranks[line.source]
            number = first + len(kept)
            seen = self._seen.get(line.data)
            if seen is None or rank in seen[2] or number - seen[0] > WINDOW or not line.data:
                self._seen.pop(line.data, None)
                self._seen[line.data] = (number, line, {rank})
                kept.append(line)
                continue
            place, known, ranks = seen
            folded = known._replace(others={**known.others, line.source: line.end})
            ranks.add(rank)
            self._seen[line.data] = (place, folded, ranks)
            if place >= first:
                kept[place - first] = folded
            else:
                changed[place] = folded
        while len(self._seen) > 2 * WINDOW:
            del self._seen[next(iter(self._seen))]
        return kept, changed
