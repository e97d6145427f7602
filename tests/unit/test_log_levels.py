"""Which level a line of output has."""

from __future__ import annotations

import re
import time

import click
import pytest

from engine.commands.arguments import Moment, Pattern
from engine.core.log_levels import LEVELS, LevelReader


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
        ("Mean error: 0.5", "error"),
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
