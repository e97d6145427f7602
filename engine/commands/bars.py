"""Progress bars of ranks as lines at the bottom of a terminal, redrawn as they change, below the output that scrolls by.

A bar is a line that its rank has not ended yet and has overwritten with carriage returns. In a file, only its last state appears.
"""

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from engine.core.terminal_text import terminal_line
from engine.core.words import count

_UP_AND_CLEAR = "\x1b[{}F\x1b[J"
"""Moves the cursor up some lines, to the first column, and clears everything below (ECMA-48: CPL, ED)."""


class LiveBars:
    """The bars on one terminal. `stream`: the terminal; nothing is drawn on other streams."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown: list[str] = []

    def hide(self) -> None:
        """Removes the bars, so that something else can be printed in their place."""
        if self._shown:
            self._stream.write(_UP_AND_CLEAR.format(len(self._shown)))
            self._stream.flush()
            self._shown = []

    def show(self, bars: Sequence[tuple[str, bytes]]) -> None:
        """Draws bars. `bars`: what stands before each, and its newest state."""
        if not self._is_terminal or not (bars or self._shown):
            return
        columns, rows = shutil.get_terminal_size()
        lines = bar_lines(bars, columns, max(1, rows // 2))
        if lines != self._shown:
            self.hide()
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
            self._shown = lines


def bar_lines(bars: Sequence[tuple[str, bytes]], columns: int, most: int) -> list[str]:
    """The lines of bars, each on one row of a terminal. `bars`: what stands before each, and its newest state. `most`: lines at most; the
    last one tells how many bars are left out."""
    lines = [_cut(before + terminal_line(state, colour=False), columns - 1) for before, state in bars]
    if len(lines) > most:
        left = len(lines) - most + 1
        lines[most - 1 :] = [_cut(f"… and {count(left, 'more bar')}", columns - 1)]
    return lines


def _cut(line: str, cells: int) -> str:
    """The beginning of a line that fits. Each character of a bar takes one cell. If one takes two, the bar may be cut earlier."""
    if line.isascii():
        return line[:cells]
    from wcwidth import wcwidth

    used = 0
    for at, character in enumerate(line):
        used += max(0, wcwidth(character))
        if used > cells:
            return line[:at]
    return line


def newest_state(parts: Sequence[bytes]) -> bytes:
    """The newest of a bar's states that is not empty."""
    return next((part for part in reversed(parts) if part.strip()), b"")
