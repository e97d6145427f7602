"""Which level a line of output has."""

from __future__ import annotations

import re
import time

import click
import pytest

from engine.commands.arguments import Moment, Pattern
from engine.core.log_levels import ERROR_EXPRESSION, ERROR_WORDS, LEVELS, LevelReader, level_word


@pytest.mark.parametrize(
    ("line", "level", "word"),
    [
        ("ERROR: boom", "error", "ERROR"),
        ("[WARNING] x", "warning", "WARNING"),
        ("2026-01-02 10:00:00,123 - train.loop - INFO - x", "info", "INFO"),
        ("[2026-01-02 10:00:00] [DEBUG] x", "debug", "DEBUG"),
        ("10:00:00.5 | CRITICAL | x", "error", "CRITICAL"),
        ("[rank3]: Traceback (most recent call last):", "error", "Traceback (most recent call last)"),
        ("torch.cuda.OutOfMemoryError: CUDA", "error", "torch.cuda.OutOfMemoryError"),
        ("[rank0]:[W1125 08:00:00.123 file.cpp:12] x", "warning", "W"),
        ("/a/b.py:12: UserWarning: x", "warning", "UserWarning"),
        ("3 WARNING: odd", "warning", "WARNING"),
        ("worker-2 [loader] ERROR: no file", "error", "ERROR"),
        ("the ERROR is later", None, ""),
        ("one, two, three, four ERROR: later", None, ""),
        ("error 0.5", None, ""),
        ("INFORMATION", None, ""),
        ("step 1 error: 0.1", None, ""),
        ("", None, ""),
    ],
)
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


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("step 3 loss=0.5", "info"),
        ("2026-01-02 10:00:00,123 - train - DEBUG - batch 7", "debug"),
        ("[INFO|trainer.py:123] 2026-01-02 >> ***** Running training *****", "info"),
        ("INFO:root:hello", "info"),
        ("2026-01-02 10:00:00 | WARNING  | train:main:3 - slow", "warning"),
        ("WARNING:root:slow", "warning"),
        ("[rank0]:[W1121 10:00:00.123 ProcessGroup.cpp:1] Warning: not destroyed", "warning"),
        ("[W1121 10:00:00.123 ProcessGroup.cpp:1] something", "warning"),
        ("W1124 20:05:49.392000 31821 torch/multiprocessing/spawn.py:165] Terminating", "warning"),
        ("E1124 20:05:50.689000 31782 torch/x.py:1] failed", "error"),
        ("/x/train.py:3: UserWarning: lr_scheduler", "warning"),
        ("[ERROR] no data", "error"),
        ("ValueError: bad batch", "error"),
        ("torch.OutOfMemoryError: CUDA out of memory", "error"),
        ("CRITICAL - disk", "error"),
        ("val_error=0.2 error_rate 0.3", "info"),
        ("Mean error: 0.5", "info"),
        ("step 1 error: 0.1", "info"),
        ("\x1b[31mERROR\x1b[0m no data", "error"),
        ("KeyboardInterrupt", "error"),
        ("informational warnings: none", "info"),
        ("", "info"),
    ],
)
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
