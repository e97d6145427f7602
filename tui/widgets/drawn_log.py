"""How the lines of a log are drawn, each once for as long as it looks the same. `LogPane` says which lines are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual.cache import LRUCache
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.log_levels import LEVELS
from tui.data.log_folding import Line
from tui.data.merged_log import MergedLog
from tui.text.cells import Span, segments_line
from tui.widgets import log_lines

_PARTS = ("prefix", "stderr", "match", "current-match", "empty", *LEVELS)


class DrawnLog(ScrollView):
    """The lines of a log as rows of the screen."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log-pane--{part}" for part in _PARTS}

    DEFAULT_CSS = """
    DrawnLog {
        background: $surface;
        color: $foreground;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;

        & > .log-pane--prefix { color: $text-muted; }
        & > .log-pane--stderr { color: $text-warning; text-style: bold; }
        & > .log-pane--debug { color: $text-muted; }
        & > .log-pane--info { color: $text-accent; }
        & > .log-pane--warning { color: $text-warning; }
        & > .log-pane--error { color: $text-error; text-style: bold reverse; }
        & > .log-pane--match { background: $warning 40%; text-style: underline; }
        & > .log-pane--current-match { background: $warning; color: $background; text-style: bold underline; }
        & > .log-pane--empty { color: $text-muted; }
    }
    """

    wrap: var[bool] = var(False)
    """Whether long lines go on in the next row."""

    def __init__(self, *, ascii: bool, id: str | None, classes: str | None) -> None:
        super().__init__(id=id, classes=classes)
        self.ascii = ascii
        self._log: MergedLog | None = None
        self._current: int | None = None
        """Number of the line that stands out."""
        self._drawn: LRUCache[tuple[int, bool], Sequence[Strip]] = LRUCache(1024)
        self._styles: log_lines.Styles | None = None

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()
        self._styles = None

    @property
    def _width(self) -> int:
        """Cells of a row, beside the scrollbar."""
        return max(0, self.size.width - self.scrollbar_size_vertical)

    @property
    def _count(self) -> int:
        return len(self._log.lines) + len(self._log.partials) if self._log is not None else 0

    @property
    def _base(self) -> Style:
        """The style of cells without text."""
        return (self._styles or self._make_styles()).base

    def _line(self, index: int) -> Line:
        assert self._log is not None
        lines = self._log.lines
        return lines[index] if index < len(lines) else self._log.partials[index - len(lines)]

    def _rows(self, index: int) -> Sequence[Strip]:
        """The rows of a line: one, or as many as it takes where lines are wrapped."""
        assert self._log is not None
        line = self._line(index)
        number = self._log.first + index
        if index >= len(self._log.lines):
            return self._draw(line, number)
        key = (number, number == self._current)
        rows = self._drawn.get(key)
        if rows is None:
            rows = self._drawn[key] = self._draw(line, number)
        return rows

    def _text(self, line: Line) -> tuple[log_lines.Prefix, str, list[Span]]:
        """The prefix of a line, its text, and its colours."""
        assert self._log is not None
        head = log_lines.prefix(self._log, line, ascii=self.ascii)
        return head, *segments_line(line.data, colour=not self.app.no_color)

    def _draw(self, line: Line, number: int) -> Sequence[Strip]:
        head, text, spans = self._text(line)
        styles = self._styles or self._make_styles()
        spans = [*spans, *self._marks(text, number, styles)]
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(number)) is not None:
            begin, end = (edge - len(head.text) if edge != -1 else len(text) for edge in span)
            spans = [*spans, (max(0, begin), max(0, min(end, len(text))), styles.selection)]
        return log_lines.drawn(head, text, spans, styles, width=self._width if self.wrap else 0, number=number)

    def _marks(self, text: str, number: int, styles: log_lines.Styles) -> list[Span]:
        """What stands out in a line."""
        return []

    def _make_styles(self) -> log_lines.Styles:
        base = self.rich_style
        parts = {part: self.get_component_rich_style(f"log-pane--{part}") for part in _PARTS}
        self._styles = log_lines.Styles(
            base=base,
            prefix=base + parts["prefix"],
            stderr=base + parts["stderr"],
            match=parts["match"],
            current_match=parts["current-match"],
            levels={level: parts[level] for level in LEVELS},
            # Only its background: the colour of its text, where a theme sets none, is that of its background (Textual 8.2.8).
            selection=Style(bgcolor=self.screen.get_component_rich_style("screen--selection").bgcolor),
        )
        return self._styles
