"""The table of ranks, one row for each: node, state, step, throughput, loss, GPU, and the last line or the failure. Textual's `DataTable`
(8.2.8) repaints everything when one cell changes, takes text for markup and measures every cell of every row. This table draws the lines
that are on the screen, keeps what it has drawn, and repaints the lines that differ."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast, get_args

from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.cache import LRUCache
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.run.state import RankWord
from engine.core.settings import DEFAULT_LOOK, DEFAULT_UNITS, HidableColumn, Look, Units
from tui.data.model import Row
from tui.data.rank_order import ORDERS, Arrangement, Order, needs_attention
from tui.deck import Deck
from tui.keys import bindings
from tui.text.rank_columns import Columns, Fit, Sparks, headings, row_parts, sparks_of, with_arrow
from tui.text.sparkline import WINDOWS
from tui.widgets.line_keys import RANK_CELLS, CursorChosen, CursorMoved, LineKeys, line_width, show_line
from tui.widgets.text_pane import fitted_title

MOST_SCALED = 512  # ranks that are looked at for the common scale of the small curves

_WHOLE_ROW = ("failed", "lost", "stopped")  # states that colour the whole row; others colour their word


class Cells(NamedTuple):
    """Everything that a painted row depends on. Equal cells look the same. `text`: (style or empty, text) of the row's parts, left to right."""

    word: RankWord
    cursor: bool
    text: tuple[tuple[str, str], ...]


class RankStrips:
    """Draws the rows of a table, each once for as long as it looks the same."""

    def __init__(self, table: ScrollView, units: Units, *, ascii: bool) -> None:
        self._table, self._units, self._ascii = table, units, ascii
        self._style = table.get_component_rich_style
        self._strips: LRUCache[Cells, Strip] = LRUCache(512)
        self._known: LRUCache[int, tuple[object, Cells]] = LRUCache(256)
        """Cells of rows with what they were made from: a row that has changed is compared first, and then drawn."""

    def restyle(self) -> None:
        self._strips.clear()

    def cells(self, row: Row, columns: Columns, now: float, sparks: Sparks, *, index: int, cursor: bool) -> Cells:
        """The text of a row. `index`: number of the row. The last text of each row is kept."""
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
            is_whole = cells.word in _WHOLE_ROW
            row = self._style(f"ranks--{cells.word}") if is_whole else self._table.rich_style
            if cells.cursor:
                cursor = self._style("rank-table--cursor")
                row += Style(bgcolor=cursor.bgcolor, bold=cursor.bold or None, reverse=cursor.reverse or None)
            drawn = Strip(
                Segment(text, row if is_whole or part in ("", "running") else row + self._ink(part))
                for part, text in cells.text
            )
            strip = self._strips[cells] = drawn.adjust_cell_length(width, row)
        return strip

    def _ink(self, part: str) -> Style:
        style = self._style(f"rank-table--{part}" if part in ("muted", "spark", "trouble") else f"ranks--{part}")
        return Style(color=style.color, bold=style.bold or None)

    def header(self, columns: Columns, unit: str, order: Order, width: int) -> Strip:
        """The headings, with an arrow at the column that the ranks are sorted by."""
        plain, segments = self._style("rank-table--header"), []
        for name, text in headings(columns, unit, ascii=self._ascii):
            if name == order.column and order != Order():
                text = with_arrow(text, rising=order.is_rising, ascii=self._ascii)
                segments.append(Segment(text, self._style("rank-table--sorted")))
            else:
                segments.append(Segment(text, plain))
        return Strip(segments).adjust_cell_length(width, plain)


class RankTable(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    BINDINGS = bindings("list", "ranks", "table")

    HEADINGS = 1

    COMPONENT_CLASSES: ClassVar[set[str]] = RANK_CELLS | {
        "rank-table--header", "rank-table--sorted", "rank-table--cursor", "rank-table--muted", "rank-table--spark", "rank-table--trouble",
    }  # fmt: skip

    def __init__(
        self,
        *,
        ascii: bool = False,
        look: Look = DEFAULT_LOOK,
        units: Units = DEFAULT_UNITS,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._ascii = ascii
        self.none_matches = "No rank matches."  # shown while the filter shows no rank
        self._ranks = Arrangement()
        self._rows: Sequence[Row] = ()  # those that the filter shows, in order
        self._now = 0.0
        self._cursor = 0
        self._fit = Fit()
        self._look = look
        self._sparks = Sparks()
        self._sparks_for: object = None
        self._painted: dict[int, Cells] = {}
        self._strips = RankStrips(self, units, ascii=ascii)

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def cursor_rank(self) -> int | None:
        """The rank under the cursor; None in an empty table."""
        return self._rows[self._cursor].view.rank if self._rows else None

    def set_rows(self, rows: Sequence[Row], now: float) -> None:
        """Shows other values and repaints the visible rows that differ. The cursor stays on its rank."""
        self._ranks.every, self._now = rows, now
        every, look = self._ranks.every, self._look
        state = (look, len(every), int(self._now))
        if state != self._sparks_for:
            self._sparks_for = state
            first = self.scroll_offset.y if len(every) > MOST_SCALED else 0
            self._sparks = sparks_of(every[first : first + MOST_SCALED], look, int(self._now))
        self._show(self._ranks.in_order(self._now))

    def action_columns(self) -> None:
        where = "shown where there is room"
        options = {
            column: f"left out; {where}" if column in self._look.hidden else where for column in get_args(HidableColumn)
        }
        cast("Deck", self.app).choose_from(options, self._toggle, "a column to leave out or to show")

    def _toggle(self, name: str) -> None:
        hidden = self._look.hidden
        self._change(hidden=tuple(one for one in get_args(HidableColumn) if (one in hidden) != (one == name)))

    def action_window(self) -> None:
        words = [words for words, _ in WINDOWS]
        self._change(curves=words[(words.index(self._look.curves) + 1) % len(words)])

    def action_own_scale(self) -> None:
        self._change(own_scale=not self._look.own_scale)

    def _change(self, **fields: object) -> None:
        self._look = replace(self._look, **fields)
        self.set_rows(self._ranks.every, self._now)
        self.refresh()
        cast("Deck", self.app).keep_look(**fields)

    def _show(self, rows: Sequence[Row]) -> None:
        cursor_rank = self.cursor_rank
        grown = len(rows) != len(self._rows)
        self._rows = rows
        if grown:
            self.virtual_size = Size(0, len(rows) + 1)
        if cursor_rank is not None:
            self._cursor = self._place(cursor_rank)
        if self._arrange() or grown:
            self.refresh()
        else:
            self._refresh_changed()
        if self.cursor_rank != cursor_rank:
            self.post_message(CursorMoved())
        self._say()

    def _say(self) -> None:
        words = [self._ranks.order.words] if self._ranks.order.words else []
        if self._ranks.query:
            words = [f"{len(self._rows)} of {len(self._ranks.every)} match {self._ranks.query!r}", *words]
        title = f"Ranks: {', '.join(words)}" if words else "Ranks"
        if str(self.border_title) != title:
            # A title is taken for markup unless it is Content (Textual 8.2.8).
            self.border_title = fitted_title(self, title, ascii=self._ascii)
        subtitle = f"curves: {self._look.curves}{', own scales' if self._look.own_scale else ''}"
        subtitle = subtitle if self._fit.columns.spark else ""
        if str(self.border_subtitle or "") != subtitle:
            self.border_subtitle = Content(subtitle)

    # --- order and filter --------------------------------------------------------------------------------------------

    def filter(self, query: str) -> None:
        """Shows only ranks that match; see `rank_order.matches`. Empty: all."""
        self._ranks.query = " ".join(query.split())
        self._show(self._ranks.in_order(self._now))
        self.refresh()

    def sort(self, order: Order) -> None:
        """Sorts the ranks. The cursor stays on its rank, and in view."""
        self._ranks.order = order
        self._show(self._ranks.in_order(self._now))
        show_line(self, self._cursor, self.HEADINGS)
        self.refresh()

    def action_next_order(self) -> None:
        here = ORDERS.index(self._ranks.order) if self._ranks.order in ORDERS else -1
        self.sort(ORDERS[(here + 1) % len(ORDERS)])

    def action_sort_column(self, direction: int) -> None:
        shown = self._fit.sortable
        here = shown.index(self._ranks.order.column) if self._ranks.order.column in shown else 0
        self.sort(Order(shown[(here + direction) % len(shown)]))

    def action_reverse(self) -> None:
        self.sort(self._ranks.order._replace(reverse=not self._ranks.order.reverse))

    def action_next_trouble(self) -> None:
        """Goes to the next rank that has failed, hangs or lags; after the last one, to the first."""
        count = len(self._rows)
        places = [(self._cursor + step) % count for step in range(1, count + 1)]
        found = next((place for place in places if needs_attention(self._rows[place].view)), None)
        if found is not None:
            self._go(found)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "next_trouble":
            return any(needs_attention(row.view) for row in self._rows)
        return True

    def move_cursor(self, rank: int) -> None:
        if self._rows and self._rows[self._place(rank)].view.rank == rank:
            self._go(self._place(rank))

    def _place(self, rank: int) -> int:
        """Index of a rank's row, or the nearest place for one that is gone."""
        here = max(0, min(self._cursor, len(self._rows) - 1))
        if self._rows and self._rows[here].view.rank == rank:
            return here
        return next((index for index, row in enumerate(self._rows) if row.view.rank == rank), here)

    def _arrange(self) -> bool:
        """Fits the columns to the width. True if they changed."""
        return self._fit.take((row.view for row in self._ranks.every), line_width(self), self._look.hidden)

    def _refresh_changed(self) -> None:
        first = self.scroll_offset.y
        for index in range(first, min(len(self._rows), first + self.size.height - 1)):
            if self._painted.get(y := index - first + 1) != self._cells(index):
                self.refresh(Region(0, y, line_width(self), 1))

    # --- the cursor --------------------------------------------------------------------------------------------------

    def _move(self, lines: int) -> None:
        self._go(self._cursor + lines)

    def _go(self, index: int) -> None:
        if not self._rows:
            return
        index = max(0, min(index, len(self._rows) - 1))
        show_line(self, index, self.HEADINGS)
        if index != self._cursor:
            self._cursor = index
            self._refresh_changed()
            self.post_message(CursorMoved())

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the row. A click on the cursor's row selects the rank, and a click on a heading sorts by its column."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0:
            column = self._fit.column_at(offset.x)
            if column == self._ranks.order.column:
                self.action_reverse()
            elif column is not None:
                self.sort(Order(column))
            return
        index = self.scroll_offset.y + offset.y - 1 if offset is not None and offset.y > 0 else len(self._rows)
        if index >= len(self._rows):
            return
        if index == self._cursor:
            self.post_message(CursorChosen())
        self._go(index)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Fits the columns to the width, and keeps the cursor in view."""
        self._arrange()
        self._go(self._cursor)
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.restyle()

    def render_line(self, y: int) -> Strip:
        width = line_width(self)
        if y == 0:
            return self._strips.header(self._fit.columns, self._fit.unit, self._ranks.order, width)
        index = self.scroll_offset.y + y - 1
        if index < len(self._rows):
            cells = self._painted[y] = self._cells(index)
            return self._strips.row(cells, width)
        self._painted.pop(y, None)
        text = f" {self.none_matches}" if y == 1 and self._ranks.every else ""
        quiet = Strip([Segment(text, self.get_component_rich_style("rank-table--muted"))])
        return quiet.adjust_cell_length(width, self.rich_style)

    def _cells(self, index: int) -> Cells:
        cursor = index == self._cursor
        return self._strips.cells(
            self._rows[index], self._fit.columns, self._now, self._sparks, index=index, cursor=cursor
        )
