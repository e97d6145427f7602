"""One row for each rank: where it runs, how it is, how fast, how well, and why not.

Textual's `DataTable` (8.2.8) repaints everything when one cell changes, takes text for markup and measures every cell of
every row. This table draws the lines that are on the screen, keeps what it has drawn, and repaints the lines that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.run.state import RankWord
from tui.text.rank_columns import Columns, RankRow, heading, row_parts


class _Cells(NamedTuple):
    """Everything that a painted row depends on. Equal cells look the same."""

    word: RankWord
    cursor: bool
    text: tuple[tuple[str, str], ...]
    """(component class or empty, text) of the row's parts, left to right."""


class RankTable(ScrollView, can_focus=True):
    """The ranks of a run. Arrows or hjkl move; enter chooses."""

    ALLOW_SELECT = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "cursor_down", "Down", show=False),
        Binding("up,k", "cursor_up", "Up", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
        Binding("ctrl+d", "half_page_down", "Half a page down", show=False),
        Binding("ctrl+u", "half_page_up", "Half a page up", show=False),
        Binding("home,g", "first", "First rank", show=False),
        Binding("end,G", "last", "Last rank", show=False),
        Binding("enter", "select", "Choose", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rank-table--header",
        "rank-table--cursor",
        "rank-table--muted",
        "rank-table--starting",
        "rank-table--exited",
        "rank-table--failed",
        "rank-table--lost",
        "rank-table--stopped",
        "rank-table--spark",
    }

    DEFAULT_CSS = """
    RankTable {
        background: $surface;
        color: $foreground;
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;

        & > .rank-table--header { color: $text-muted; text-style: bold; }
        & > .rank-table--cursor { background: $foreground 12%; }
        &:focus > .rank-table--cursor { background: $primary 35%; text-style: bold; }
        & > .rank-table--muted { color: $text-muted; }
        & > .rank-table--spark { color: $text-accent; }
        & > .rank-table--starting { color: $text-warning; }
        & > .rank-table--exited { color: $text-success; }
        & > .rank-table--failed { color: $text-error; background: $error 20%; text-style: bold; }
        & > .rank-table--lost { color: $text-warning; background: $warning 15%; text-style: bold; }
        & > .rank-table--stopped { color: $text-muted; }
    }
    """

    class Highlighted(Message):
        """The cursor came to a rank."""

        def __init__(self, table: RankTable, rank: int) -> None:
            super().__init__()
            self.table = table
            self.rank = rank

        @property
        def control(self) -> RankTable:
            """The table."""
            return self.table

        def can_replace(self, message: Message) -> bool:
            """Only the newest place of the cursor matters."""
            return isinstance(message, RankTable.Highlighted)

    class Selected(Message):
        """A rank was chosen: enter, or a click on the row under the cursor."""

        def __init__(self, table: RankTable, rank: int) -> None:
            super().__init__()
            self.table = table
            self.rank = rank

        @property
        def control(self) -> RankTable:
            """The table."""
            return self.table

    def __init__(
        self,
        *,
        ascii: bool = False,  # noqa: A002  named after the command line's flag
        name: str | None = None,
        id: str | None = None,  # noqa: A002  Textual's word
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.ascii = ascii
        self._rows: Sequence[RankRow] = ()
        self._now = 0.0
        self._cursor = 0
        self._columns = Columns.fitted(80, world_size=1, node=4)
        self._unit = ""
        self._has_gpus = False
        """Whether any was ever seen: columns that come and go with a restart would dance."""
        self._painted: dict[int, _Cells] = {}
        self._strips: LRUCache[_Cells, Strip] = LRUCache(512)
        self._styles: dict[str, Style] = {}

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def cursor_rank(self) -> int | None:
        """The rank under the cursor; None in an empty table."""
        return self._rows[self._cursor].view.rank if self._rows else None

    def set_rows(self, rows: Sequence[RankRow], now: float) -> None:
        """Shows other values. Repaints what they changed of the visible part; the cursor stays on its rank.

        Args:
            rows: every row, in the order in which they stand.
            now: seconds since the epoch, for ages.
        """
        cursor_rank = self.cursor_rank
        grown = len(rows) != len(self._rows)
        self._rows = rows
        self._now = now
        if grown:
            self.virtual_size = Size(0, len(rows) + 1)
        if cursor_rank is not None and self.cursor_rank_at(self._cursor) != cursor_rank:
            self._cursor = self._place(cursor_rank)
        if self._arrange() or grown:
            self.refresh()
        else:
            self._refresh_changed()
        if rows and self.cursor_rank != cursor_rank:
            self.post_message(self.Highlighted(self, rows[self._cursor].view.rank))

    def cursor_rank_at(self, index: int) -> int | None:
        """The rank that stands at an index of the rows; None past the end."""
        return self._rows[index].view.rank if index < len(self._rows) else None

    def move_cursor(self, rank: int) -> None:
        """Puts the cursor on a rank, if the table has it."""
        if self._rows and self._rows[self._place(rank)].view.rank == rank:
            self._go(self._place(rank))

    def _place(self, rank: int) -> int:
        """Index of a rank's row, or the nearest place for one that is gone."""
        gone = max(0, min(self._cursor, len(self._rows) - 1))
        return next((index for index, row in enumerate(self._rows) if row.view.rank == rank), gone)

    def _arrange(self) -> bool:
        """Recomputes columns and headings. True if they changed."""
        nodes = {row.view.node for row in self._rows}
        node = max((len(name) for name in nodes), default=4)
        self._has_gpus = self._has_gpus or any(row.view.gpu is not None for row in self._rows)
        columns = Columns.fitted(self._width, world_size=len(self._rows), node=node, gpus=self._has_gpus)
        unit = next((row.view.unit for row in self._rows if row.view.unit), "")
        changed = (columns, unit) != (self._columns, self._unit)
        self._columns, self._unit = columns, unit
        return changed

    @property
    def _width(self) -> int:
        """Cells of a row, beside the scrollbar."""
        return max(0, self.size.width - self.scrollbar_size_vertical)

    def _visible(self) -> Iterable[tuple[int, int]]:
        """(line on the screen, index of its row) of every row that is in sight."""
        first = self.scroll_offset.y
        for index in range(first, min(len(self._rows), first + self.size.height - 1)):
            yield index - first + 1, index

    def _refresh_changed(self) -> None:
        for y, index in self._visible():
            if self._painted.get(y) != self._cells(index):
                self.refresh(Region(0, y, self._width, 1))

    # --- the cursor --------------------------------------------------------------------------------------------------

    def _go(self, index: int) -> None:
        if not self._rows:
            return
        index = max(0, min(index, len(self._rows) - 1))
        top = self.scroll_offset.y
        page = max(1, self.size.height - 1)
        if index < top or index >= top + page:
            self.scroll_to(y=index if index < top else index - page + 1, animate=False)
        if index != self._cursor:
            self._cursor = index
            self._refresh_changed()
            self.post_message(self.Highlighted(self, self._rows[index].view.rank))

    def action_cursor_down(self) -> None:
        """Next rank."""
        self._go(self._cursor + 1)

    def action_cursor_up(self) -> None:
        """Previous rank."""
        self._go(self._cursor - 1)

    def action_page_down(self) -> None:
        """As many ranks further as are in sight."""
        self._go(self._cursor + max(1, self.size.height - 2))

    def action_page_up(self) -> None:
        """As many ranks back as are in sight."""
        self._go(self._cursor - max(1, self.size.height - 2))

    def action_half_page_down(self) -> None:
        """Half of a page further."""
        self._go(self._cursor + max(1, self.size.height // 2))

    def action_half_page_up(self) -> None:
        """Half of a page back."""
        self._go(self._cursor - max(1, self.size.height // 2))

    def action_first(self) -> None:
        """The first row."""
        self._go(0)

    def action_last(self) -> None:
        """The last row."""
        self._go(len(self._rows) - 1)

    def action_select(self) -> None:
        """Chooses the rank under the cursor."""
        if self._rows:
            self.post_message(self.Selected(self, self._rows[self._cursor].view.rank))

    def on_click(self, event: events.Click) -> None:
        """Takes the cursor to the row; on the row that has it already, chooses the rank."""
        offset = event.get_content_offset(self)
        index = self.scroll_offset.y + offset.y - 1 if offset is not None and offset.y > 0 else len(self._rows)
        if index >= len(self._rows):
            return
        if index == self._cursor:
            self.action_select()
        self._go(index)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Shares out the new width, and keeps the cursor in sight."""
        self._arrange()
        self._go(self._cursor)
        self.refresh()

    def notify_style_update(self) -> None:
        """Forgets what was drawn in the old theme."""
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        """One line: the heading, then rows."""
        width = self._width
        if y == 0:
            return self._header()
        index = self.scroll_offset.y + y - 1
        if index >= len(self._rows):
            self._painted.pop(y, None)
            return Strip.blank(width, self.rich_style)
        cells = self._cells(index)
        self._painted[y] = cells
        strip = self._strips.get(cells)
        if strip is None or strip.cell_length != width:
            strip = self._strips[cells] = self._drawn(cells).adjust_cell_length(width, self._row_style(cells))
        return strip

    def _cells(self, index: int) -> _Cells:
        row, cursor = self._rows[index], index == self._cursor
        return _Cells(row.view.state, cursor, row_parts(row, self._columns, self._now, cursor=cursor, ascii=self.ascii))

    def _header(self) -> Strip:
        text = heading(self._columns, self._unit, ascii=self.ascii)
        style = self._style("rank-table--header")
        return Strip([Segment(text, style)]).adjust_cell_length(self._width, style)

    def _drawn(self, cells: _Cells) -> Strip:
        row = self._row_style(cells)
        plain = cells.word in ("failed", "lost", "stopped")
        return Strip(
            Segment(text, row if plain or not part or part == "running" else row + self._ink(f"rank-table--{part}"))
            for part, text in cells.text
        )

    def _row_style(self, cells: _Cells) -> Style:
        style = self.rich_style
        if cells.word in ("failed", "lost", "stopped"):
            style = self._style(f"rank-table--{cells.word}")
        if cells.cursor:
            cursor = self._style("rank-table--cursor")
            style += Style(bgcolor=cursor.bgcolor, bold=cursor.bold or None, reverse=cursor.reverse or None)
        return style

    def _ink(self, name: str) -> Style:
        style = self._style(name)
        return Style(color=style.color, bold=style.bold or None)

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self.get_component_rich_style(name)
        return style
