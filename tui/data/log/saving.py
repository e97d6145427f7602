"""Writes the shown lines of a log into a new file that only the user may read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from engine.core.terminal_text import terminal_line
from tui.data.log.folding import Line
from tui.data.log.merged import MergedLog


def save_text(path: Path, text: str) -> int:
    """Writes a text into a new file, and returns its number of lines. Raises OSError."""
    with _new(path) as file:
        file.write(text.removesuffix("\n") + "\n")
    return text.removesuffix("\n").count("\n") + 1


def save_lines(path: Path, log: MergedLog, head: Callable[[MergedLog, Line], str]) -> int:
    """Writes every line of a log that was not read yet into a new file, after the text of `head`. Returns how many. Raises OSError."""
    written = 0
    with _new(path) as file:
        batch = log.fetch("start")
        while True:
            lines = batch.lines if batch.more else [*batch.lines, *batch.partials]
            file.writelines(f"{head(log, line)}{terminal_line(line.data, colour=False)}\n" for line in lines)
            written += len(lines)
            if not batch.more:
                return written
            batch = log.fetch("newer")


def _new(path: Path) -> TextIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return open(descriptor, "w", encoding="utf-8", errors="replace")
