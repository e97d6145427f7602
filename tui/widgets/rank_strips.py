"""The rows of the rank table as strips, each drawn once for as long as it looks the same."""

from collections.abc import Callable, Container
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip

from engine.core.run.state import RankWord
from engine.core.settings import Units
from tui.data.model import Row
from tui.data.rank_order import Order
from tui.text.rank_columns import Columns, Sparks, headings, row_parts, with_arrow

_WHOLE_ROW: Container[RankWord] = ("failed", "lost", "stopped")
"""States that colour the whole row; others colour their word."""


class Cells(NamedTuple):
    """Everything that a painted row depends on. Equal cells look the same. `text`: (style or empty, text) of the row's parts, left to right."""

    word: RankWord
    cursor: bool
    text: tuple[tuple[str, str], ...]


class RankStrips:
    """Draws rows and headings. `style_of` gives the style of a component class; for an empty name, the widget's."""

    def __init__(self, style_of: Callable[[str], Style], units: Units, *, ascii: bool) -> None:
        self._style_of = style_of
        self._units = units
        self._ascii = ascii
        self._strips: LRUCache[Cells, Strip] = LRUCache(512)
        self._known: LRUCache[int, tuple[object, Cells]] = LRUCache(256)
        """Cells of rows with what they were made from: a row that has changed is compared first, and then drawn."""
        self._styles: dict[str, Style] = {}

    def restyle(self) -> None:
        self._strips.clear()
        self._styles.clear()

    def cells(self, row: Row, columns: Columns, now: float, sparks: Sparks, *, index: int, cursor: bool) -> Cells:
        """The text of a row. `index`: its place, where it is remembered."""
        made_from = row, cursor, columns, now, sparks
        known = self._known.get(index)
        if known is not None and known[0] == made_from:
            return known[1]
        parts = row_parts(row, columns, now, cursor=cursor, ascii=self._ascii, sparks=sparks, units=self._units)
        cells = Cells(row.view.state, cursor, parts)
        self._known[index] = made_from, cells
        return cells

    def row(self, cells: Cells, width: int) -> Strip:
        """A row of `width` cells."""
        strip = self._strips.get(cells)
        if strip is None or strip.cell_length != width:
            style = self.style(f"ranks--{cells.word}") if cells.word in _WHOLE_ROW else self._style_of("")
            if cells.cursor:
                cursor = self.style("rank-table--cursor")
                style += Style(bgcolor=cursor.bgcolor, bold=cursor.bold or None, reverse=cursor.reverse or None)
            row = style
            plain = cells.word in _WHOLE_ROW
            drawn = Strip(
                Segment(text, row if plain or not part or part == "running" else row + self._ink(part))
                for part, text in cells.text
            )
            strip = self._strips[cells] = drawn.adjust_cell_length(width, row)
        return strip

    def header(self, columns: Columns, unit: str, order: Order, width: int) -> Strip:
        """The headings, with an arrow at the column that the ranks are sorted by."""
        style, sorted_style = self.style("rank-table--header"), self.style("rank-table--sorted")
        segments = []
        for name, text in headings(columns, unit, ascii=self._ascii):
            if name == order.column and order != Order():
                shown = with_arrow(text, rising=order.is_rising, ascii=self._ascii)
                segments.append(Segment(shown, sorted_style))
            else:
                segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(width, style)

    def note(self, text: str, width: int) -> Strip:
        """A quiet line in place of a row; empty: nothing."""
        return Strip([Segment(text, self.style("rank-table--muted"))]).adjust_cell_length(width, self._style_of(""))

    def style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self._style_of(name)
        return style

    def _ink(self, part: str) -> Style:
        style = self.style(f"rank-table--{part}" if part in ("muted", "spark", "trouble") else f"ranks--{part}")
        return Style(color=style.color, bold=style.bold or None)
