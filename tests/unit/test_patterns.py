"""The tables of words and patterns that lines of output are read with."""

import re
from pathlib import Path

from engine.core.metrics.lines import patterns
from engine.core.tables import read_table

FOLDER = Path(patterns.__file__).parent
CODE = "".join(file.read_text() for file in FOLDER.glob("*.py"))
PATTERNS = read_table("engine.core.metrics.lines", "patterns", patterns.Pattern)
WORDS = read_table("engine.core.metrics.lines", "words", patterns.Words)


def test_each_pattern_has_a_name_of_its_own_and_says_what_it_finds() -> None:
    assert len({row.name for row in PATTERNS}) == len(PATTERNS) == len(vars(patterns.P))
    for row in PATTERNS:
        assert row.what.strip(), row.name
        assert row.flags in ("", "i")
        assert "\x01" not in row.pattern  # written as an escape


def test_each_row_is_used() -> None:
    uses = CODE + "".join(row.pattern.replace("<<", "P.") for row in PATTERNS)
    for prefix, names in (("P", vars(patterns.P)), ("[PW]", vars(patterns.W))):
        assert not [name for name in names if not re.search(rf"\b{prefix}\.{name}\b", uses)]


def test_words_are_in_lower_case_and_stand_once() -> None:
    for row in WORDS:
        words = row.words.split()
        assert words == [word.lower() for word in dict.fromkeys(words)], row.name
