"""The log of one rank or of all, for people: keys and copying on top of what `SearchedLog` shows."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.selection import Selection

from tui.keys import bindings
from tui.text.cells import plain_line
from tui.widgets.cursor_view import LineKeys
from tui.widgets.searched_log import SearchedLog

COPY_LINES = 2_000
"""Most lines that are copied at once: terminals take about 75 kB."""

SIDEWAYS = 8
"""Cells that one key press moves sideways."""


class LogView(LineKeys, SearchedLog, inherit_bindings=False):
    """A log with its keys. Search and follow have keys of the screen, which work from its other panes too."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list"), *bindings("log")]

    # --- moving ------------------------------------------------------------------------------------------------------

    def _move(self, rows: int) -> None:
        position = self._moved(rows)
        if rows < 0:
            self._follow = False
        self._travel(max((0, 0), position))

    def action_first(self) -> None:
        """To the beginning, of the files and not only of what is held."""
        self._follow = False
        if self._log is not None and (self._log.has_older or not self._log.lines):
            self._wanted = "start"
            self.poll()
        else:
            self._place(0, 0)
        self._announce()

    def action_last(self) -> None:
        """To the end, and along with it."""
        self.follow = True
        self.poll()

    def action_follow(self) -> None:
        if self._follow:
            self.follow = False
        else:
            self.action_last()

    def action_sideways(self, direction: int) -> None:
        """Moves the text sideways, where lines are not wrapped."""
        if not self.wrap:
            self._column = max(0, self._column + direction * SIDEWAYS)
            self._place(self._top, self._skip)

    def action_toggle_wrap(self) -> None:
        self.wrap = not self.wrap

    # --- copying -----------------------------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text of a selection made with the mouse."""
        if self._log is None:
            return None
        first = self._log.first
        begin = max(0, selection.start.y - first) if selection.start is not None else 0
        end = min(self._count, selection.end.y - first + 1) if selection.end is not None else self._count
        lines: list[str] = []
        for index in range(begin, min(end, begin + COPY_LINES)):
            prefix, text, _ = self._text(self._line(index))
            span = selection.get_span(index + first)
            if span is not None:
                # A line from its beginning is copied without the column that tells stderr from stdout.
                blank = len(prefix.text) - len(prefix.text.lstrip()) if not prefix.is_stderr else len(prefix.sign)
                text = prefix.text + text
                begin = max(span[0], blank)
                lines.append(text[begin:] if span[1] == -1 else text[begin : max(begin, span[1])])
        return "\n".join(lines), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draws the selection."""
        self._drawn.clear()
        self._place(self._top, self._skip)

    def action_copy(self) -> None:
        """Copies the selection; without one, the lines in view."""
        text = self.screen.get_selected_text()
        if not text:
            last = min(self._count, max(self._top + 1, self._moved(self.size.height)[0]))
            text = "\n".join(plain_line(self._line(index).data) for index in range(self._top, last))
        self.app.copy_to_clipboard(text)
