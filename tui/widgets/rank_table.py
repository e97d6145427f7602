"""The table of ranks, one row for each: node, state, step, throughput, loss, GPU, and the last line or the failure.

Textual's `DataTable` (8.2.8) repaints everything when one cell changes, takes text for markup and measures every cell of
every row. This table draws the lines that are on the screen, keeps what it has drawn, and repaints the lines that differ.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import ClassVar, NamedTuple, cast, get_args

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.cache import LRUCache
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.run.state import RankWord
from engine.core.settings import DEFAULT_LOOK, DEFAULT_UNITS, HidableColumn, Look, Units
from tui.data.rank_order import COLUMNS, ORDERS, Order, arranged, needs_attention
from tui.data.spark import WINDOWS, Scale, scale_of
from tui.deck import Deck
from tui.keys import bindings
from tui.text.rank_columns import Columns, RankRow, Sparks, headings, row_parts, with_arrow
from tui.widgets.line_keys import RANK_CELLS, CursorChosen, CursorMoved, LineKeys, line_width, show_line
from tui.widgets.text_pane import fitted_title

_WHOLE_ROW: Container[RankWord] = ("failed", "lost", "stopped")
"""States that colour the whole row; others colour their word."""


MOST_SCALED = 512
"""Ranks that are looked at for the common scale of the small curves."""


class _Cells(NamedTuple):
    """Everything that a painted row depends on. Equal cells look the same."""

    word: RankWord
    cursor: bool
    text: tuple[tuple[str, str], ...]
    """(style or empty, text) of the row's parts, left to right."""


class RankTable(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    """The ranks of a run, with a cursor on one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list"), *bindings("ranks"), *bindings("table")]

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
        self._units = units
        self.none_matches = "No rank matches."
        """Shown while the filter shows no rank."""
        self._every: Sequence[RankRow] = ()
        self._rows: Sequence[RankRow] = ()
        """Those that the filter shows, in order."""
        self._order = Order()
        self._query = ""
        self._places: dict[int, int] = {}
        self._placed_at: object = None
        self._now = 0.0
        self._cursor = 0
        self._columns = Columns.fitted(80, world_size=1, node=4)
        self._unit = ""
        self._has_gpus = False
        """Whether a GPU was ever seen: columns must not come and go with a restart."""
        self._has_usage = False
        """The same for what processes use."""
        self._window = [words for words, _ in WINDOWS].index(look.curves)
        self._own_scale = look.own_scale
        self._hidden = look.hidden
        self._sparks = Sparks()
        self._sparks_for: object = None
        self._painted: dict[int, _Cells] = {}
        self._strips: LRUCache[_Cells, Strip] = LRUCache(512)
        self._known: LRUCache[int, tuple[object, _Cells]] = LRUCache(256)
        """Cells of rows with what they were made from: a row that has changed is compared first, and then drawn."""
        self._styles: dict[str, Style] = {}

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def cursor_rank(self) -> int | None:
        """The rank under the cursor; None in an empty table."""
        return self._rows[self._cursor].view.rank if self._rows else None

    def set_rows(self, rows: Sequence[RankRow], now: float) -> None:
        """Shows other values and repaints the visible rows that differ. The cursor stays on its rank.

        Args:
            rows: every row, in order of rank.
            now: seconds since the epoch, for ages.
        """
        self._every, self._now = rows, now
        self._scale()
        self._show(self._in_order())

    def _scale(self) -> None:
        """One scale for all ranks, so that they can be compared. It may change once a second."""
        state = (self._window, self._own_scale, len(self._every), int(self._now))
        if state == self._sparks_for:
            return
        self._sparks_for = state
        seconds = WINDOWS[self._window][1]
        since = None if seconds is None else int(self._now) - seconds
        first = self.scroll_offset.y
        rows = self._every if len(self._every) <= MOST_SCALED else self._every[first : first + MOST_SCALED]
        scales: tuple[Scale | None, Scale | None] = (None, None)
        if not self._own_scale:
            scales = scale_of((row.throughput for row in rows), since), scale_of((row.loss for row in rows), since)
        self._sparks = Sparks(since, *scales)

    class LookChanged(Message):
        """The user wants another look. `fields`: of `Look`."""

        def __init__(self, **fields: object) -> None:
            super().__init__()
            self.fields = fields

    def action_columns(self) -> None:
        """Asks for a column, and leaves it out, or shows it again."""
        options = {
            column: "left out; shown where there is room" if column in self._hidden else "shown where there is room"
            for column in get_args(HidableColumn)
        }
        cast("Deck", self.app).choose_from(options, self._toggle, "a column to leave out or to show")

    def _toggle(self, name: str) -> None:
        self._hidden = tuple(
            column for column in get_args(HidableColumn) if (column in self._hidden) != (column == name)
        )
        self._sparks_for = None
        self.set_rows(self._every, self._now)
        self.post_message(self.LookChanged(hidden=self._hidden))

    def action_window(self) -> None:
        """The whole run, or what is newer."""
        self._window = (self._window + 1) % len(WINDOWS)
        self._redraw_sparks()
        self.post_message(self.LookChanged(curves=WINDOWS[self._window][0]))

    def action_own_scale(self) -> None:
        """A scale for each curve, or one for all."""
        self._own_scale = not self._own_scale
        self._redraw_sparks()
        self.post_message(self.LookChanged(own_scale=self._own_scale))

    def _redraw_sparks(self) -> None:
        self._scale()
        self._say()
        self.refresh()

    def _in_order(self) -> Sequence[RankRow]:
        """The rows to show. Once a second they may change places: a row that jumps with every number can't be read."""
        if self._order == Order() and not self._query:
            return self._every
        state = (self._order, self._query, len(self._every), int(self._now))
        if state != self._placed_at:
            self._placed_at = state
            rows = arranged(self._every, self._order, self._query)
            self._places = {row.view.rank: place for place, row in enumerate(rows)}
            return rows
        shown = [row for row in self._every if row.view.rank in self._places]
        return sorted(shown, key=lambda row: self._places[row.view.rank])

    def _show(self, rows: Sequence[RankRow]) -> None:
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
        """Says in the border what is shown, and in which order."""
        words = [self._order.words] if self._order.words else []
        if self._query:
            words = [f"{len(self._rows)} of {len(self._every)} match {self._query!r}", *words]
        title = f"Ranks: {', '.join(words)}" if words else "Ranks"
        if str(self.border_title) != title:
            # A title is taken for markup unless it is Content (Textual 8.2.8).
            self.border_title = fitted_title(self, title, ascii=self._ascii)
        subtitle = f"curves: {WINDOWS[self._window][0]}{', own scales' if self._own_scale else ''}"
        subtitle = subtitle if self._columns.spark else ""
        if str(self.border_subtitle or "") != subtitle:
            self.border_subtitle = Content(subtitle)

    # --- order and filter --------------------------------------------------------------------------------------------

    def filter(self, query: str) -> None:
        """Shows only ranks that match; see `rank_order.matches`. Empty: all."""
        self._query = " ".join(query.split())
        self._show(self._in_order())
        self.refresh()

    def sort(self, order: Order) -> None:
        """Sorts the ranks. The cursor stays on its rank, and in view."""
        self._order = order
        self._show(self._in_order())
        show_line(self, self._cursor, self.HEADINGS)
        self.refresh()

    def action_next_order(self) -> None:
        here = ORDERS.index(self._order) if self._order in ORDERS else -1
        self.sort(ORDERS[(here + 1) % len(ORDERS)])

    def action_sort_column(self, direction: int) -> None:
        """Sorts by the next column, or by the one before."""
        shown = [name for name, _ in self._headings() if name]
        here = shown.index(self._order.column) if self._order.column in shown else 0
        self.sort(Order(COLUMNS[COLUMNS.index(shown[(here + direction) % len(shown)])]))

    def action_reverse(self) -> None:
        self.sort(self._order._replace(reverse=not self._order.reverse))

    def action_next_trouble(self) -> None:
        """Goes to the next rank that has failed, hangs or lags; after the last one, to the first."""
        count = len(self._rows)
        places = [(self._cursor + step) % count for step in range(1, count + 1)]
        found = next((place for place in places if needs_attention(self._rows[place].view)), None)
        if found is not None:
            self._go(found)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers only keys that do something now."""
        if action == "next_trouble":
            return any(needs_attention(row.view) for row in self._rows)
        return True

    def move_cursor(self, rank: int) -> None:
        """Puts the cursor on a rank, if the table has it."""
        if self._rows and self._rows[self._place(rank)].view.rank == rank:
            self._go(self._place(rank))

    def _place(self, rank: int) -> int:
        """Index of a rank's row, or the nearest place for one that is gone."""
        here = max(0, min(self._cursor, len(self._rows) - 1))
        if self._rows and self._rows[here].view.rank == rank:
            return here
        return next((index for index, row in enumerate(self._rows) if row.view.rank == rank), here)

    def _arrange(self) -> bool:
        """Recomputes columns and headings. True if they changed."""
        nodes = {row.view.node for row in self._every}
        node = max(len(name) for name in nodes) if len(nodes) > 1 else 0
        self._has_gpus = self._has_gpus or any(row.view.gpu is not None for row in self._every)
        self._has_usage = self._has_usage or any(row.view.process is not None for row in self._every)
        columns = Columns.fitted(
            line_width(self),
            world_size=len(self._every),
            node=node,
            gpus=self._has_gpus,
            usage=self._has_usage,
            hidden=self._hidden,
        )
        unit = next(
            (f"{'~' if row.view.is_derived else ''}{row.view.unit}" for row in self._every if row.view.unit), ""
        )
        changed = (columns, unit) != (self._columns, self._unit)
        self._columns, self._unit = columns, unit
        return changed

    def _visible(self) -> Iterable[tuple[int, int]]:
        """(line on the screen, index of its row) of every row in view."""
        first = self.scroll_offset.y
        for index in range(first, min(len(self._rows), first + self.size.height - 1)):
            yield index - first + 1, index

    def _refresh_changed(self) -> None:
        for y, index in self._visible():
            if self._painted.get(y) != self._cells(index):
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
        """Moves the cursor to the row; a click on the row that has it selects the rank, one on a heading sorts by it."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0:
            self._click_heading(offset.x)
            return
        index = self.scroll_offset.y + offset.y - 1 if offset is not None and offset.y > 0 else len(self._rows)
        if index >= len(self._rows):
            return
        if index == self._cursor:
            self.post_message(CursorChosen())
        self._go(index)

    def _click_heading(self, x: int) -> None:
        for name, text in self._headings():
            x -= cell_len(text)
            if x < 0:
                if name == self._order.column:
                    self.action_reverse()
                elif name in COLUMNS:
                    self.sort(Order(name))
                return

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Fits the columns to the width, and keeps the cursor in view."""
        self._arrange()
        self._go(self._cursor)
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        width = line_width(self)
        if y == 0:
            return self._header()
        index = self.scroll_offset.y + y - 1
        if index >= len(self._rows):
            self._painted.pop(y, None)
            if y == 1 and self._every:
                text = Segment(f" {self.none_matches}", self._style("rank-table--muted"))
                return Strip([text]).adjust_cell_length(width, self.rich_style)
            return Strip.blank(width, self.rich_style)
        cells = self._cells(index)
        self._painted[y] = cells
        strip = self._strips.get(cells)
        if strip is None or strip.cell_length != width:
            strip = self._strips[cells] = self._drawn(cells).adjust_cell_length(width, self._row_style(cells))
        return strip

    def _cells(self, index: int) -> _Cells:
        row, cursor = self._rows[index], index == self._cursor
        made_from = row, cursor, self._columns, self._now, self._sparks
        known = self._known.get(index)
        if known is not None and known[0] == made_from:
            return known[1]
        parts = row_parts(
            row, self._columns, self._now, cursor=cursor, ascii=self._ascii, sparks=self._sparks, units=self._units
        )
        cells = _Cells(row.view.state, cursor, parts)
        self._known[index] = made_from, cells
        return cells

    def _headings(self) -> list[tuple[str, str]]:
        return headings(self._columns, self._unit, ascii=self._ascii)

    def _header(self) -> Strip:
        style, sorted_style = self._style("rank-table--header"), self._style("rank-table--sorted")
        segments = []
        for name, text in self._headings():
            if name == self._order.column and self._order != Order():
                shown = with_arrow(text, rising=self._order.is_rising, ascii=self._ascii)
                segments.append(Segment(shown, sorted_style))
            else:
                segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(line_width(self), style)

    def _drawn(self, cells: _Cells) -> Strip:
        row = self._row_style(cells)
        plain = cells.word in _WHOLE_ROW
        return Strip(
            Segment(text, row if plain or not part or part == "running" else row + self._ink(part))
            for part, text in cells.text
        )

    def _row_style(self, cells: _Cells) -> Style:
        style = self.rich_style
        if cells.word in _WHOLE_ROW:
            style = self._style(f"ranks--{cells.word}")
        if cells.cursor:
            cursor = self._style("rank-table--cursor")
            style += Style(bgcolor=cursor.bgcolor, bold=cursor.bold or None, reverse=cursor.reverse or None)
        return style

    def _ink(self, part: str) -> Style:
        style = self._style(f"rank-table--{part}" if part in ("muted", "spark", "trouble") else f"ranks--{part}")
        return Style(color=style.color, bold=style.bold or None)

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self.get_component_rich_style(name)
        return style
