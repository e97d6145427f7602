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
_ENGLISH = dict(pair.split("=") for pair in W.other_languages)
_FOREIGN = late("|".join(sorted(_ENGLISH, key=len, reverse=True)), re.IGNORECASE)


def in_english(line: bytes) -> str:
    """The text of a line. Names in other languages, as in `训练损失: 0.4`, are replaced; its numbers stay in their order."""
    text = line.decode("utf-8", "replace")
    if line.isascii():
        return text
    text = P.ordinal.sub(lambda found: f"{'epoch' if found[2] else 'step'} {found[1]} ", text)
    return P.part_loss.sub("part_loss", _FOREIGN.sub(lambda found: f"{_ENGLISH[found[0].lower()]} ", text))
