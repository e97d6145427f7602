"""A log in which a regular expression is sought: its matches are marked, counted, and gone to."""

from __future__ import annotations

from typing import Literal

from rich.cells import cell_len
from textual.message import Message

from engine.core.log_levels import level_word
from tui.data.log_file import LogFile
from tui.data.log_filter import LogFilter
from tui.data.log_pattern import ERRORS, Pattern, PatternError
from tui.data.log_search import Found, LogSearch, Step
from tui.data.merged_log import Batch, MergedLog, Place
from tui.text.cells import Span
from tui.widgets import log_lines
from tui.widgets.log_pane import LogPane

TOO_SLOW = "it takes too long in these lines"


class SearchedLog(LogPane):
    """A log with a search. What was found so far is in `found`."""

    found: Found | None = None
    """None: nothing is sought."""
    _pattern_error = ""

    pattern: Pattern | None = None
    """What is sought."""
    _search: LogSearch | None = None
    _origin: Place | Literal["start", "end"] | None = None
    """Where the search began; it stays while the user types on."""
    _step: Step = "nearest"

    class Sought(Message, bubble=False):
        """The search has found something. Posted from its thread."""

        def can_replace(self, message: Message) -> bool:
            """Only the newest state matters."""
            return isinstance(message, SearchedLog.Sought)

    @property
    def pattern_error(self) -> str:
        """Why what the user typed can't be sought; empty: it can."""
        return TOO_SLOW if self.pattern is not None and self.pattern.is_slow else self._pattern_error

    @property
    def wrapped(self) -> Literal["", "first", "last"]:
        """Whether the newest match was found from the other end: it is the first or the last."""
        if self.found is None or not self.found.wrapped:
            return ""
        return "first" if self._step == "next" else "last"

    def show(self, log: MergedLog | LogFile | None, title: str = "", at: Place | None = None) -> None:
        """See `LogPane.show`. A search goes on in the other log."""
        super().show(log, title, at)
        self._origin = "end" if self.pattern is not None else None
        self._begin_search()

    def set_filter(self, shown: LogFilter, title: str) -> None:
        """Shows only some lines of the log. A reader stays where he is."""
        if self._log is not None:
            at = None if self._follow or not 0 <= self._top < len(self._log.lines) else self._log.lines[self._top]
            self.show(self._log.copy(shown), title, None if at is None else Place(at.source, max(0, at.end - 1)))

    def search(self, text: str | None) -> None:
        """Marks the matches of a regular expression and goes to the nearest above the end of the view, else below.

        Args:
            text: the expression; case counts if it has capitals. None or empty ends the search.
        """
        self._pattern_error = ""
        self.pattern = None
        if text:
            self._origin = self._origin or self._bottom()
            try:
                self.pattern = Pattern(text)
            except PatternError as error:
                self._pattern_error = str(error)
        else:
            self._origin = None
        self._begin_search()
        self._place(self._top, self._skip)

    def search_errors(self) -> None:
        """Goes to the first line that tells of an error."""
        self._pattern_error, self.pattern, self._origin = "", ERRORS, "start"
        self._begin_search()
        self._place(self._top, self._skip)

    def next_match(self) -> None:
        """Goes to the next match, from the last one to the first."""
        self._ask("next")

    def previous_match(self) -> None:
        """Goes to the match before, from the first one to the last."""
        self._ask("previous")

    def action_next_match(self) -> None:
        self.next_match()

    def action_previous_match(self) -> None:
        self.previous_match()

    def poll(self) -> None:
        """See `LogPane.poll`."""
        super().poll()
        if self._search is not None:
            self._search.look()

    def _bottom(self) -> Place | Literal["end"]:
        """Where the last line of the view ends."""
        index = self._moved(self.size.height)[0]
        if self._follow or self._log is None or not 0 <= index < len(self._log.lines):
            return "end"
        line = self._log.lines[index]
        return Place(line.source, line.end)

    def _begin_search(self) -> None:
        self._end_search()
        self._current = None
        self._drawn.clear()
        if self.pattern is not None and self._log is not None:
            self.found, self._step = Found(), "nearest"
            self._search = LogSearch(self._log.copy(), self.pattern, self._origin or "end", self._tell_sought)
        self._announce()

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.close()
        self._search = self.found = None

    def _ask(self, step: Step) -> None:
        if self._search is not None:
            self._step = step
            self._search.ask(step)

    def _tell_sought(self) -> None:
        self.post_message(self.Sought())

    def on_searched_log_sought(self) -> None:
        if self._search is None or self.found is None:
            return
        before, self.found = self.found, self._search.found
        if self.found.asked > before.asked and self.found.place is not None:
            line = self._current
            is_there = self._go_to(self.found.place)
            if is_there and line is not None and line == self._current and self.found.place != before.place:
                self._ask(self._step)  # the same line, of another rank
        self._announce()

    def on_unmount(self) -> None:
        super().on_unmount()
        self._end_search()

    # --- going to a match --------------------------------------------------------------------------------------------

    def _go_to(self, place: Place) -> bool:
        """Goes to a line. Returns whether it is held; if not, it is read, and gone to when it arrives."""
        assert self._log is not None
        self._follow = False
        index = self._log.index(place)
        if index is None:
            self._wanted = place
            self.poll()
            return False
        self._go_to_line(index)
        return True

    def _arrived_around(self, batch: Batch) -> None:
        if self.found is None or self.found.place != batch.where:
            super()._arrived_around(batch)
            return
        self._top, self._skip = batch.place + 1, 0  # a line above the view is gone to
        self._go_to_line(batch.place)

    def _go_to_line(self, index: int) -> None:
        assert self._log is not None
        self._current = index + self._log.first
        if not self._top <= index < self._moved(self.size.height)[0]:
            self._top, self._skip = index, 0
            self._top, self._skip = max((0, 0), self._moved(-(self.size.height // 2)))
        if not self.wrap:
            self._bring_in_view(index)
        self._place(self._top, self._skip)

    def _bring_in_view(self, index: int) -> None:
        """Moves sideways to the match of a line."""
        prefix, text, _ = self._text(self._line(index))
        begin, end = next(iter(self._places(text)), (0, 0))
        right = cell_len(prefix.text + text[:end])
        if not self._column <= cell_len(prefix.text + text[:begin]) < right <= self._column + self._width:
            self._column = max(0, right - self._width * 3 // 4) if right > self._width else 0

    def _places(self, text: str) -> list[tuple[int, int]]:
        """Where a line as it is shown has matches; where errors are sought, the word that tells one."""
        if self.pattern is None:
            return []
        if self.pattern is not ERRORS:
            return list(self.pattern.places(text))
        level = level_word(text)
        return [(level.begin, level.end)] if level is not None and level.level == "error" else []

    def _marks(self, text: str, number: int, styles: log_lines.Styles) -> list[Span]:
        style = styles.current_match if number == self._current else styles.match
        places = self._places(text)
        level = level_word(text)
        spans = [(begin, end, style) for begin, end in places]
        if level is not None and not any(begin < level.end and end > level.begin for begin, end in places):
            spans.append((level.begin, level.end, styles.levels[level.level]))
        return spans

    def _state(self) -> tuple[object, ...]:
        is_cut = self.pattern is not None and self.pattern.is_cut
        return *super()._state(), self.found, self.pattern_error, is_cut, self._step
