"""Which level a line of output has."""

import re
import time

import click
import pytest

from engine.commands.arguments import Moment, Pattern
from engine.core.log_levels import ERROR_EXPRESSION, ERROR_WORDS, LEVELS, LevelReader, level_word
from tests.support import from_table


@from_table
def test_the_word_stands_at_the_beginning_or_after_a_time(line: str, level: str | None, word: str) -> None:
    found = level_word(line)
    assert (None if found is None else found.level) == level
    if found is not None:
        assert line[found.begin : found.end] == word
    assert (re.search(ERROR_EXPRESSION, line, re.MULTILINE) is not None) == (level == "error")
    assert level != "error" or any(word in line for word in ERROR_WORDS)


@pytest.mark.parametrize(
    "line", ["2026-01-02 10:00:00 " + "a - " * 2000, "[" * 4000, "rank " * 1000, "- " * 2000, "a.b " * 2000, "(" * 4000]
)
def test_a_long_line_takes_no_time(line: str) -> None:
    assert level_word(line) is None


@from_table
def test_a_line_has_the_level_that_it_names(line: str, level: str) -> None:
    assert LEVELS[LevelReader().level(line.encode())] == level


def test_a_traceback_is_an_error_to_its_last_line() -> None:
    text = 'before\nTraceback (most recent call last):\n  File "a.py", line 1\n    x\nKeyError: 3\nafter\n'
    reader = LevelReader()
    levels = [LEVELS[reader.level(line.encode())] for line in text.splitlines()]
    assert levels == ["info", "error", "error", "error", "error", "info"]


def test_a_traceback_that_torch_marks_with_its_rank_ends_too() -> None:
    text = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 1\n[rank0]: KeyError: 3\nafter\n'
    reader = LevelReader()
    assert [LEVELS[reader.level(line.encode())] for line in text.splitlines()] == ["error", "error", "error", "info"]


def test_a_time_is_ago_or_of_today_or_a_date() -> None:
    moment = Moment()
    assert abs(time.time() - 600 - moment.convert("10m", None, None)) < 60
    assert moment.convert("2026-11-24T14:05", None, None) == moment.convert("2026-11-24 14:05:00", None, None)
    assert time.localtime(moment.convert("14:05", None, None))[3:6] == (14, 5, 0)
    for wrong in ("", "x", "10", "25:00", "10y", "9999999999d"):
        with pytest.raises(click.BadParameter, match="is not a time"):
            moment.convert(wrong, None, None)


def test_a_pattern_is_checked() -> None:
    assert Pattern().convert("a.c", None, None) == re.compile(b"a.c")
    with pytest.raises(click.BadParameter, match="not a regular expression"):
        Pattern().convert("(", None, None)
