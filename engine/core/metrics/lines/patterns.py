"""Words and patterns of lines that report training: `words.tsv` and `patterns.tsv`. `P.bar` is the pattern of the row `bar`, `W.held_out`
the words of the row `held_out`. In a pattern, `<<number>>` stands for the pattern of that row, and `<<held_out>>` for any of those words."""

import re
from typing import NamedTuple

from engine.core.patterns import late
from engine.core.tables import read_table


class Words(NamedTuple):
    """A row of `words.tsv`."""

    name: str
    words: str
    what: str = ""


class Pattern(NamedTuple):
    """A row of `patterns.tsv`. `flags`: `i` if upper and lower case are alike."""

    name: str
    flags: str
    pattern: str
    what: str = ""


class _AllWords:
    def __init__(self) -> None:
        self.__dict__.update(
            {row.name: frozenset(row.words.split()) for row in read_table(__package__, "words", Words)}
        )

    def __getattr__(self, name: str) -> frozenset[str]:
        raise AttributeError(name)


class _AllPatterns:
    def __init__(self) -> None:
        parts = {name: "|".join(sorted(words)) for name, words in vars(W).items()}
        for row in read_table(__package__, "patterns", Pattern):
            parts[row.name] = re.sub(r"<<(\w+)>>", lambda found: parts[found[1]], row.pattern)
            self.__dict__[row.name] = late(parts[row.name], re.IGNORECASE if row.flags else 0)

    def __getattr__(self, name: str) -> re.Pattern[str]:
        raise AttributeError(name)


W = _AllWords()
P = _AllPatterns()
