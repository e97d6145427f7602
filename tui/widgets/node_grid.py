"""The ranks of a run by node: a box for each node with a cell for each rank, for runs with many ranks. A running rank is a block whose
height shows one measure; any other rank is the sign of its state. An outlier, or a value that is not finite, has another colour. The
border shows the numbers of the rank under the cursor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.core.numbers import NOTHING, age, memory, number, percent
from engine.core.settings import DEFAULT_UNITS, Units
from engine.core.views.view import NodeView, RankView
from tui.keys import bindings
from tui.text.cells import cell_fit, plain_line
from tui.text.marks import signs, to_ascii
from tui.text.node_cells import GAP, MEASURES, Boxes, Cell, Measure, Part, cells_of
from tui.text.run import away_words
from tui.widgets.line_keys import RANK_CELLS, CursorChosen, CursorMoved, LineKeys, line_width, show_line


class _Piece(NamedTuple):
    text: str
    part: Part = ""
    cursor: bool = False


class NodeGrid(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    BINDINGS = bindings("list", "ranks", "nodes")

    COMPONENT_CLASSES: ClassVar[set[str]] = RANK_CELLS | {"node-grid--cursor", "node-grid--block", "node-grid--alarm"}

    def __init__(
        self, *, ascii: bool = False, units: Units = DEFAULT_UNITS, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._ascii = ascii
        self._units = units
        self.measure: Measure = MEASURES[0]
        self._members: Sequence[NodeView] = ()
        self._views: Mapping[int, RankView] = {}
        self._away: Mapping[str, float] = {}
        self._cells: dict[int, Cell] = {}
        self._boxes = Boxes.fitted(80, name=4, ranks=1)
        self._cursor = (0, 0)  # index of a node, and of one of its ranks
        self._painted: dict[int, tuple[_Piece, ...]] = {}

    # --- what is shown -----------------------------------------------------------------------------------------------

    @property
    def cursor_rank(self) -> int | None:
        """The rank under the cursor; None if there is none."""
        node, index = self._cursor
        return self._members[node].ranks[index] if node < len(self._members) else None

    def show_nodes(self, nodes: Sequence[NodeView], views: Mapping[int, RankView], away: Mapping[str, float]) -> None:
        """Shows other values and repaints the visible lines that differ. The cursor stays on its rank."""
        nodes = [node for node in nodes if node.ranks]
        rank = self.cursor_rank
        moved = [(node.name, node.ranks) for node in nodes] != [(node.name, node.ranks) for node in self._members]
        self._members, self._views, self._away = nodes, views, away
        self._cells = cells_of(views, self.measure, ascii=self._ascii)
        if moved:
            self._cursor = (0, 0)
            self._fit()
            if rank is not None:
                self.move_cursor(rank)
        self._draw()

    def move_cursor(self, rank: int) -> None:
        for index, node in enumerate(self._members):
            if rank in node.ranks:
                self._go(index, node.ranks.index(rank))

    def action_measure(self) -> None:
        has_gpus = any(view.gpu is not None for view in self._views.values())
        measures = MEASURES if has_gpus else MEASURES[:-1]
        self.measure = measures[(MEASURES.index(self.measure) + 1) % len(measures)]
        self._cells = cells_of(self._views, self.measure, ascii=self._ascii)
        self._draw()

    def _draw(self) -> None:
        for y in range(self.size.height):
            if self._painted.get(y) != self._line(y):
                self.refresh(Region(0, y, line_width(self), 1))
        self._say()

    def _say(self) -> None:
        """Names the measure above the boxes, and the rank under the cursor below them."""
        title, subtitle = f"Ranks by node: {self.measure}", ""
        rank = self.cursor_rank
        if rank is not None and (view := self._views.get(rank)) is not None:
            unit = f" {plain_line(view.unit)}/s" if view.unit else " per s"
            words = [
                f"rank {rank} on {plain_line(view.node)}",
                f"{signs(ascii=self._ascii).ranks[view.state]} {view.state}",
                f"step {NOTHING if view.step is None else view.step}",
            ]
            if self.measure != "memory":
                words += [f"{number(view.throughput, 7).strip()}{unit}", f"loss {number(view.loss, 7).strip()}"]
            elif (gpu := view.gpu) is not None:
                used, whole = memory(gpu.memory, self._units), memory(gpu.memory_total, self._units)
                words += [f"gpu {percent(gpu.utilisation)}", f"mem {used} of {whole}"]
            subtitle = "  ".join(words)
            subtitle = to_ascii(subtitle) if self._ascii else subtitle
        # A title is taken for markup unless it is Content (Textual 8.2.8).
        if str(self.border_title) != title:
            self.border_title = Content(title)
        if str(self.border_subtitle) != subtitle:
            self.border_subtitle = Content(subtitle)

    # --- geometry ----------------------------------------------------------------------------------------------------

    def _fitted(self, width: int) -> Boxes:
        name = max((len(node.name) for node in self._members), default=4)
        return Boxes.fitted(width, name=name, ranks=max((len(node.ranks) for node in self._members), default=1))

    def _height(self, boxes: Boxes) -> int:
        return math.ceil(len(self._members) / boxes.across) * boxes.lines

    def _fit(self) -> None:
        self._boxes = self._fitted(line_width(self))
        self.virtual_size = Size(0, self._height(self._boxes))
        self._painted.clear()
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines that show every node, for a height that is automatic."""
        return self._height(self._fitted(width - self.scrollbar_size_vertical))

    def on_resize(self) -> None:
        """Fits the boxes to the width, and keeps the cursor in view."""
        self._fit()
        self._scroll_to_cursor()

    # --- the cursor --------------------------------------------------------------------------------------------------

    def _go(self, node: int, index: int) -> None:
        if not self._members:
            return
        node = max(0, min(node, len(self._members) - 1))
        index = max(0, min(index, len(self._members[node].ranks) - 1))
        moved = (node, index) != self._cursor
        self._cursor = (node, index)
        self._scroll_to_cursor()
        if moved:
            self._draw()
            self.post_message(CursorMoved())

    def _scroll_to_cursor(self) -> None:
        node, index = self._cursor
        show_line(self, node // self._boxes.across * self._boxes.lines + index // self._boxes.cells, 0)

    def _move(self, lines: int) -> None:
        """Moves up or down on the screen: within a box of several lines, then to the box above or below."""
        (node, index), boxes = self._cursor, self._boxes
        if not self._members:
            return
        row, line = node // boxes.across, index // boxes.cells
        last = (len(self._members[node].ranks) - 1) // boxes.cells
        if lines > 0 and line + lines > last:  # a node may have fewer lines than its box
            lines += boxes.lines - 1 - last
        line = max(0, min(row * boxes.lines + line + lines, self._height(boxes) - 1))
        node = line // boxes.lines * boxes.across + node % boxes.across
        self._go(node, line % boxes.lines * boxes.cells + index % boxes.cells)

    def action_first(self) -> None:
        self._go(0, 0)

    def action_last(self) -> None:
        if self._members:
            self._go(len(self._members) - 1, len(self._members[-1].ranks) - 1)

    def action_sideways(self, direction: int) -> None:
        node, index = self._cursor
        if not self._members or 0 <= index + direction < len(self._members[node].ranks):
            self._go(node, index + direction)
        elif 0 <= node + direction < len(self._members):
            self._go(node + direction, 0 if direction > 0 else len(self._members[node + direction].ranks) - 1)

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the rank; a click on the rank that has it selects it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        boxes = self._boxes
        line, (column, x) = self.scroll_offset.y + offset.y, divmod(offset.x, boxes.width + GAP)
        node = line // boxes.lines * boxes.across + column
        if column >= boxes.across or node >= len(self._members):
            return
        index = line % boxes.lines * boxes.cells + max(0, min(x - (boxes.width - boxes.cells), boxes.cells - 1))
        place = (node, min(index, len(self._members[node].ranks) - 1))
        if place == self._cursor:
            self.post_message(CursorChosen())
        self._go(*place)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._painted.clear()

    def render_line(self, y: int) -> Strip:
        line = self._painted[y] = self._line(y)
        return Strip(Segment(text, self._style(part, cursor)) for text, part, cursor in line).adjust_cell_length(
            line_width(self), self.rich_style
        )

    def _line(self, y: int) -> tuple[_Piece, ...]:
        row, line = divmod(self.scroll_offset.y + y, self._boxes.lines)
        first = row * self._boxes.across
        pieces: list[_Piece] = []
        for index in range(first, min(len(self._members), first + self._boxes.across)):
            pieces += [_Piece(" " * GAP)] if index > first else []
            pieces += self._box(index, line)
        return tuple(pieces)

    def _box(self, index: int, line: int) -> Iterator[_Piece]:
        boxes, node = self._boxes, self._members[index]
        head = boxes.width - boxes.cells
        away = self._away.get(node.name)
        if line == 0:
            here = index == self._cursor[0]
            yield _Piece(signs(ascii=self._ascii).cursor if here else " ")
            yield _Piece(cell_fit(plain_line(node.name), boxes.name, ascii=self._ascii) + " ")
            if away is not None:
                room = boxes.width - boxes.name - 2
                words = away_words(away)
                words = f"? {words if len(words) + 2 <= room else age(away)}"
                yield _Piece(cell_fit(words, room, ascii=self._ascii), "lost")
                return
            yield self._state(node)
        else:
            yield _Piece(" " * head)
            if away is not None:
                yield _Piece(" " * boxes.cells)
                return
        begin = line * boxes.cells
        shown = node.ranks[begin : begin + boxes.cells]
        for place, rank in enumerate(shown, begin):
            sign, part = self._cells.get(rank, Cell(" ", ""))
            yield _Piece(sign, part, (index, place) == self._cursor)
        yield _Piece(" " * (boxes.cells - len(shown)))

    def _state(self, node: NodeView) -> _Piece:
        """`● 8/8`: the ranks that run or have ended well, of all."""
        drawn = signs(ascii=self._ascii)
        states = [view.state for rank in node.ranks if (view := self._views.get(rank)) is not None]
        well = sum(state in ("running", "exited") for state in states)
        alike = len(set(states)) == 1
        sign = drawn.ranks[states[0]] if alike else drawn.mixed
        part: Part = "alarm" if not alike else "" if states[0] == "running" else states[0]
        return _Piece(f"{sign} {f'{well}/{len(node.ranks)}':>{self._boxes.tally}} ", part)

    def _style(self, part: Part, cursor: bool) -> Style:
        style = self.rich_style
        if part not in ("", "running"):
            name = f"node-grid--{part}" if part in ("block", "alarm") else f"ranks--{part}"
            style += self.get_component_rich_style(name, partial=True)
        if cursor:
            style += self.get_component_rich_style("node-grid--cursor", partial=True)
        return style
