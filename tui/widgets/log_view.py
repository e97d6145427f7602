"""The log of one rank or of all, for people: keys, search and copying on top of what `LogPane` shows."""

from __future__ import annotations

from typing import ClassVar, Literal

from rich.cells import cell_len
from textual.binding import BindingType
from textual.selection import Selection

from tui.data.merged_log import Batch
from tui.keys import bindings
from tui.text.cells import Span, plain_line
from tui.widgets import log_lines
from tui.widgets.cursor_view import LineKeys
from tui.widgets.log_pane import LogPane

COPY_LINES = 2_000
"""Most lines that are copied at once: terminals take about 75 kB."""

SIDEWAYS = 8
"""Cells that one key press moves sideways."""


class LogView(LineKeys, LogPane, inherit_bindings=False):
    """A log with its keys. Search and follow have keys of the screen, which work from its other panes too."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list"), *bindings("log")]

    _needle = ""
    _seeking: Literal["", "any", "previous"] = ""
    """What to look for once more of the log has been read."""

    @property
    def has_match(self) -> bool:
        """Whether the search has found a line that is held."""
        return self._current is not None

    # --- moving ------------------------------------------------------------------------------------------------------

    def _move(self, rows: int) -> None:
        position = self._moved(rows)
        if rows < 0:
            self._follow = False
        self._travel(max((0, 0), position))

    def action_first(self) -> None:
        """To the beginning, of the files and not only of what is held."""
        self._follow = False
        if self._log is not None and self._log.has_older:
            self._wanted = "start"
            self.poll()
        else:
            self._place(0, 0)
        self._announce()

    def action_last(self) -> None:
        """To the end, and along with it."""
        self._seeking = ""
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

    # --- search ------------------------------------------------------------------------------------------------------

    def search(self, text: str | None) -> bool:
        """Marks a text wherever it stands and goes to its nearest line at or above the end of the view, else below.

        Args:
            text: what to look for; case counts if it has capitals. None or empty ends the search.

        Returns:
            Whether a line that is held has it.
        """
        self._needle = text or ""
        self._current = None
        self._seeking = "any" if self._needle and not self._count else ""
        self._drawn.clear()
        found = None
        if self._needle:
            bottom = min(self._count, self._moved(self.size.height)[0] + 1)
            found = self._found(range(bottom - 1, -1, -1))
            if found is None:
                found = self._found(range(bottom, self._count))
        self._go_to_match(found)
        return found is not None

    def next_match(self) -> bool:
        """Goes to the next line that has the text of the search. False: there is none."""
        return self._go_to_match(self._found(range(self._index_of_match() + 1, self._count)))

    def previous_match(self) -> bool:
        """Goes to the line before that has the text of the search. False: none is held; older lines are being read."""
        found = self._found(range(min(self._index_of_match(), self._count) - 1, -1, -1))
        if found is None and self._needle:
            self._seeking = "previous" if self._want_older() else ""
        return self._go_to_match(found)

    def action_next_match(self) -> None:
        self.next_match()

    def action_previous_match(self) -> None:
        self.previous_match()

    def _index_of_match(self) -> int:
        if self._current is not None and self._log is not None:
            return max(0, self._current - self._log.first)
        return self._top

    def _found(self, indices: range) -> int | None:
        if not self._needle:
            return None
        return next((index for index in indices if log_lines.has(self._line(index).data, self._needle)), None)

    def _go_to_match(self, index: int | None) -> bool:
        if index is not None and self._log is not None:
            self._current = index + self._log.first
            self._follow = False
            if not self._top <= index < self._moved(self.size.height)[0]:
                self._top, self._skip = index, 0
                self._top, self._skip = max((0, 0), self._moved(-(self.size.height // 2)))
            if not self.wrap:
                prefix, text, _ = self._text(self._line(index))
                begin, end = next(log_lines.occurrences(text, self._needle), (0, 0))
                right = cell_len(prefix.text + text[:end])
                if not self._column <= cell_len(prefix.text + text[:begin]) < right <= self._column + self._width:
                    self._column = max(0, right - self._width * 3 // 4) if right > self._width else 0
        self._place(self._top, self._skip)
        self._announce()
        return index is not None

    def _has_read(self, batch: Batch) -> None:
        """Goes on with a search that had come to the end of what was held."""
        if self._seeking == "any":
            self._seeking = ""
            self.search(self._needle)
        elif self._seeking == "previous" and batch.where == "older":
            self._seeking = ""
            self.previous_match()
        super()._has_read(batch)

    def _marks(self, text: str, number: int, styles: log_lines.Styles) -> list[Span]:
        style = styles.current_match if number == self._current else styles.match
        return [(begin, end, style) for begin, end in log_lines.occurrences(text, self._needle)]

    def _state(self) -> tuple[object, ...]:
        return *super()._state(), self._needle

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
