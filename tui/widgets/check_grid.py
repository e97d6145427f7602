"""The results of a check: a row for each node, a column for each check, and a cursor on a cell."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.checks.findings import CHECKS, Check, Grid, State
from tui.keys import bindings
from tui.text.cells import cell_fit, plain_line
from tui.text.marks import CHECK_MARKS, CURSOR, signs
from tui.widgets.line_keys import CursorMoved, LineKeys, line_width, show_line

WORD = 6  # cells of a sign with its word

MAX_NODE = 24
MIN_NODE = 8  # cells of a node's name, with and without room for it


class Columns(NamedTuple):
    """Widths in cells of a node's name, and of each check with the gap before it."""

    node: int
    checks: tuple[int, ...]

    @classmethod
    def fitted(cls, width: int, *, node: int) -> Columns:
        """The columns that fit a width: signs with words where there is room, else signs below shortened names of checks."""
        words = tuple(max(len(check), WORD) + 1 for check in CHECKS)
        if width >= CURSOR + min(node, MAX_NODE) + sum(words):
            return cls(min(node, MAX_NODE), words)
        each = max(2, min(WORD - 1, (width - CURSOR - min(node, MIN_NODE)) // len(CHECKS)))
        return cls(max(1, min(node, MAX_NODE, width - CURSOR - each * len(CHECKS))), (each,) * len(CHECKS))

    @property
    def has_words(self) -> bool:
        return self.checks[0] > WORD


class CheckGrid(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    BINDINGS = bindings("list", "cells")

    HEADINGS = 1

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "check-grid--header", "check-grid--cursor", "check-grid--ok", "check-grid--warn", "check-grid--fail", "check-grid--skip",
    }  # fmt: skip

    def __init__(self, *, ascii: bool) -> None:
        super().__init__(id="grid", classes="pane")
        self._ascii = ascii
        self._grid = Grid(())
        self._row = self._column = 0

    @property
    def cell(self) -> tuple[str, Check] | None:
        """The node and the check under the cursor; None without nodes."""
        nodes = self._grid.nodes
        return (nodes[self._row], CHECKS[self._column]) if nodes else None

    def show_grid(self, grid: Grid) -> None:
        """Shows the newest results; the cursor stays where it is."""
        self._grid = grid
        self._row = max(0, min(self._row, len(grid.nodes) - 1))
        self.virtual_size = Size(0, len(grid.nodes) + 1)
        self.refresh()

    def move_to(self, node: str, check: Check) -> None:
        self._go(self._grid.nodes.index(node), CHECKS.index(check))

    # --- the cursor ------------------------------------------------------------------------------------------------------

    def _go(self, row: int, column: int) -> None:
        if not self._grid.nodes:
            return
        row, column = max(0, min(row, len(self._grid.nodes) - 1)), max(0, min(column, len(CHECKS) - 1))
        show_line(self, row, self.HEADINGS)
        if (row, column) != (self._row, self._column):
            self._row, self._column = row, column
            self.refresh()
            self.post_message(CursorMoved())

    def _move(self, lines: int) -> None:
        self._go(self._row + lines, self._column)

    def action_sideways(self, direction: int) -> None:
        self._go(self._row, self._column + direction)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.y == 0 or self.scroll_offset.y + offset.y > len(self._grid.nodes):
            return
        columns = self._columns()
        edge, column = CURSOR + columns.node, -1
        for index, width in enumerate(columns.checks):
            column = index if offset.x >= edge else column
            edge += width
        self._go(self.scroll_offset.y + offset.y - 1, self._column if column < 0 else column)

    # --- drawing ---------------------------------------------------------------------------------------------------------

    def _columns(self) -> Columns:
        return Columns.fitted(line_width(self), node=max((len(node) for node in self._grid.nodes), default=4))

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y - 1
        columns = self._columns()
        if y == 0:
            style = self.get_component_rich_style("check-grid--header", partial=True)
            text = " " * CURSOR + cell_fit("node", columns.node)
            for check, width in zip(CHECKS, columns.checks, strict=True):
                text += f" {check[: width - 1]:<{width - 1}}"
            segments = [Segment(text, self.rich_style + style)]
        elif row < len(self._grid.nodes):
            segments = self._node(row, columns)
        else:
            return Strip.blank(line_width(self), self.rich_style)
        return Strip(segments).adjust_cell_length(line_width(self), self.rich_style)

    def _node(self, row: int, columns: Columns) -> list[Segment]:
        node = self._grid.nodes[row]
        cursor = signs(ascii=self._ascii).cursor if row == self._row else " "
        segments = [Segment(cursor + cell_fit(plain_line(node), columns.node, ascii=self._ascii), self.rich_style)]
        for column, (check, width) in enumerate(zip(CHECKS, columns.checks, strict=True)):
            finding = self._grid.at(node, check)
            state: State | None = finding.state if finding is not None else None
            sign = CHECK_MARKS[state].sign(ascii=self._ascii)
            text = f"{sign} {state}" if columns.has_words and state not in (None, "skip") else sign
            style = self.rich_style + self.get_component_rich_style(f"check-grid--{state or 'skip'}", partial=True)
            if (row, column) == (self._row, self._column):
                style += self.get_component_rich_style("check-grid--cursor", partial=True)
            segments += [Segment(" ", self.rich_style), Segment(text.ljust(width - 1), style)]
        return segments
