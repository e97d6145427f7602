"""Which word of a line tells its level."""

from __future__ import annotations

import pytest

from tui.text.levels import ERRORS, level_word


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
        ("the ERROR is later", None, ""),
        ("error 0.5", None, ""),
        ("INFORMATION", None, ""),
        ("step 1 error: 0.1", None, ""),
        ("", None, ""),
    ],
)
def test_the_word_stands_at_the_beginning_or_after_a_time(line: str, level: str | None, word: str):
    found = level_word(line)
    assert (None if found is None else found.level) == level
    if found is not None:
        assert line[found.begin : found.end] == word
    assert bool(list(ERRORS.lines(line.encode()))) == (level == "error")


@pytest.mark.parametrize("line", ["2026-01-02 10:00:00 " + "a - " * 2000, "[" * 4000, "rank " * 1000, "- " * 2000])
def test_a_long_line_takes_no_time(line: str):
    assert level_word(line) is None
