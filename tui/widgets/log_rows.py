"""The lines of a log as rows of the screen: prefix, colours and marks, each line drawn once for as long as it looks the same."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from engine.core.log_levels import LEVELS, Level, level_word
from tui.data.log.finder import LogFinder
from tui.data.log.folding import Line
from tui.data.log.merged import MergedLog
from tui.text.cells import Span, plain_line, segments_line

STDERR = "▌"
ASCII_STDERR = "!"  # the sign before every line of stderr

TIMES = "×"  # noqa: RUF001  not the letter
"""Before the number of ranks that have printed a line."""

NARROWEST = 8  # cells that the text of a wrapped line has at least

PARTS = ("prefix", "stderr", "match", "current-match", "empty", *LEVELS)  # parts of a line with a style of their own

COPY_LINES = 2_000  # most lines that are copied at once: terminals take about 75 kB


class Styles(NamedTuple):
    base: Style
    prefix: Style
    stderr: Style
    match: Style
    current_match: Style
    selection: Style
    empty: Style
    levels: dict[Level, Style]


def styles_of(view: ScrollView) -> Styles:
    """The styles of a view with the component classes of `PARTS`."""
    base = view.rich_style
    parts = {part: view.get_component_rich_style(f"log-view--{part}") for part in PARTS}
    return Styles(
        base=base,
        prefix=base + parts["prefix"],
        stderr=base + parts["stderr"],
        match=parts["match"],
        current_match=parts["current-match"],
        empty=parts["empty"],
        levels={level: parts[level] for level in LEVELS},
        # Only its background. If a theme sets no colour for its text, the text has the colour of its background (Textual 8.2.8).
        selection=Style(bgcolor=view.screen.get_component_rich_style("screen--selection").bgcolor),
    )


class Prefix(NamedTuple):
    """The text before a line, repeated in every row. `sign`: its beginning, which tells stderr from stdout."""

    text: str
    is_stderr: bool
    sign: str = ""


def prefix(log: MergedLog, line: Line, *, ascii: bool) -> Prefix:
    """A sign if the line is from stderr and there is also stdout. If there are several ranks: the rank of the line, or how many ranks have it."""
    source = log.sources[line.source]
    is_stderr = source.stream == "err"
    sign = ""
    if log.has_stderr:
        sign = (ASCII_STDERR if ascii else STDERR) if is_stderr else " "
    rank = ""
    if len(log.ranks) > 1:
        whose = f"{'x' if ascii else TIMES}{len(line.others) + 1}" if line.others else f"r{source.rank}"
        rank = f"[{whose}] ".ljust(len(str(log.ranks[-1])) + 4)
    return Prefix(sign + rank, is_stderr, sign)


def head(log: MergedLog, line: Line) -> str:
    """The text before a line in a file."""
    found = prefix(log, line, ascii=True)
    return found.text.removeprefix(found.sign)


class LogRows:
    def __init__(self, finder: LogFinder, styles: Callable[[], Styles], *, ascii: bool) -> None:
        self.log: MergedLog | None = None
        self.width = 0  # cells of a row
        self.wraps = False  # whether long lines go on in the next row
        self.has_colour = True
        self.selection: Selection | None = None
        self.current: int | None = None  # number of the line that stands out
        self._finder = finder
        self._make_styles = styles
        self._styles: Styles | None = None
        self._ascii = ascii
        self._drawn: LRUCache[tuple[int, bool], Sequence[Strip]] = LRUCache(1024)

    def clear(self) -> None:
        self._drawn.clear()

    def restyle(self) -> None:
        """The theme may have changed."""
        self._styles = None
        self.clear()

    def discard(self, number: int) -> None:
        """Draws a line anew."""
        self._drawn.discard((number, number == self.current))

    @property
    def styles(self) -> Styles:
        if self._styles is None:
            self._styles = self._make_styles()
        return self._styles

    @property
    def count(self) -> int:
        """Lines that are held, with unfinished ones."""
        return len(self.log.lines) + len(self.log.partials) if self.log is not None else 0

    def _line(self, index: int) -> Line:
        assert self.log is not None
        lines = self.log.lines
        return lines[index] if index < len(lines) else self.log.partials[index - len(lines)]

    def of(self, index: int) -> Sequence[Strip]:
        """The rows of a line: one, or several if lines are wrapped."""
        assert self.log is not None
        number = self.log.first + index
        if index >= len(self.log.lines):
            return self._draw(index, number)
        key = (number, number == self.current)
        rows = self._drawn.get(key)
        if rows is None:
            rows = self._drawn[key] = self._draw(index, number)
        return rows

    def text(self, index: int) -> tuple[Prefix, str, list[Span]]:
        """The prefix of a line, its text, and its colours."""
        assert self.log is not None
        line = self._line(index)
        return prefix(self.log, line, ascii=self._ascii), *segments_line(line.data, colour=self.has_colour)

    def first_match(self, text: str) -> tuple[int, int]:
        """Where the first match of a line is; the line's beginning if it has none."""
        return next(iter(self._finder.places(text)), (0, 0))

    def plain(self, begin: int, end: int) -> str:
        """Some lines without prefixes and colours."""
        return "\n".join(plain_line(self._line(index).data) for index in range(begin, min(end, self.count)))

    def selected(self, selection: Selection) -> str:
        """The text of a selection made with the mouse."""
        assert self.log is not None
        first = self.log.first
        begin = max(0, selection.start.y - first) if selection.start is not None else 0
        end = min(self.count, selection.end.y - first + 1) if selection.end is not None else self.count
        lines: list[str] = []
        for index in range(begin, min(end, begin + COPY_LINES)):
            head, text, _ = self.text(index)
            if (span := selection.get_span(index + first)) is not None:
                # A line from its beginning is copied without the column that tells stderr from stdout.
                blank = len(head.sign) if head.is_stderr else len(head.text) - len(head.text.lstrip())
                text = head.text + text
                start = max(span[0], blank)
                lines.append(text[start:] if span[1] == -1 else text[start : max(start, span[1])])
        return "\n".join(lines)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self, index: int, number: int) -> Sequence[Strip]:
        """The rows of a line; of marks that overlap, later ones win."""
        head, text, colours = self.text(index)
        styles = self.styles
        spans = [*colours, *self._marks(text, number)]
        if self.selection is not None and (span := self.selection.get_span(number)) is not None:
            begin, end = (edge - len(head.text) if edge != -1 else len(text) for edge in span)
            spans.append((max(0, begin), max(0, min(end, len(text))), styles.selection))
        before = [Segment(head.text, styles.stderr if head.is_stderr else styles.prefix)] if head.text else []
        room = max(NARROWEST, self.width - len(head.text))
        pieces = chop_cells(text, room) if self.wraps and self.width and text else [text]
        rows: list[Strip] = []
        begin = 0
        for piece in pieces:
            # The offsets let text be selected with the mouse.
            rows.append(Strip([*before, *_painted(piece, begin, spans, styles.base)]).apply_offsets(begin, number))
            begin += len(piece)
        return rows

    def _marks(self, text: str, number: int) -> list[Span]:
        """The matches in a line, and the word that tells its level."""
        styles = self.styles
        places = self._finder.places(text)
        level = level_word(text)
        style = styles.current_match if number == self.current else styles.match
        spans = [(begin, end, style) for begin, end in places]
        if level is not None and not any(begin < level.end and end > level.begin for begin, end in places):
            spans.append((level.begin, level.end, styles.levels[level.level]))
        return spans


def _painted(text: str, offset: int, spans: Sequence[Span], base: Style) -> list[Segment]:
    """A part of a line in its styles. `offset`: where in the line it begins."""
    end = offset + len(text)
    inside = [(max(a, offset), min(b, end), style) for a, b, style in spans if a < end and b > offset]
    if not inside:
        return [Segment(text, base)]
    edges = sorted({offset, end, *(a for a, _, _ in inside), *(b for _, b, _ in inside)})
    segments: list[Segment] = []
    for left, right in pairwise(edges):
        style = base
        for a, b, own in inside:
            if a <= left and right <= b:
                style += own
        segments.append(Segment(text[left - offset : right - offset], style))
    return segments
