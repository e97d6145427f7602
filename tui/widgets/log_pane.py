"""Where a growing log stands on the screen: which lines, how they look, and what happens when more arrive.

The text under a reader stands still: a line keeps its number, whatever arrives below or is loaded above, and the pane keeps
the number of its first line. Only a pane that follows moves, to the end. Textual 8.2.8's `RichLog` and `Log` can't be used
for this: they pull a reader down, drift once lines are dropped (textual#6311, #2991), and `Log(max_lines=…)` stops
repainting when it is full.
"""

from __future__ import annotations

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from tui.data.log_file import LogFile
from tui.data.log_filter import LogFilter
from tui.data.log_reader import LogReader
from tui.data.merged_log import Batch, MergedLog, Place, Where
from tui.widgets.drawn_log import DrawnLog

CATCH_UP = 4
"""Reads in a row that may leave more behind before a pane that follows jumps to the end instead."""


class LogPane(DrawnLog, can_focus=True):
    """Shows a log and follows it. `LogView` adds the keys."""

    class Changed(Message):
        """What `follow`, `new_lines`, `title` or a search say is different now."""

        def can_replace(self, message: Message) -> bool:
            """Only the newest state matters."""
            return isinstance(message, LogPane.Changed)

    class Arrived(Message, bubble=False):
        """The reader has read something. Posted from its thread."""

    def __init__(self, *, ascii: bool = False, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(ascii=ascii, id=id, classes=classes)
        self.title = ""
        self._reader = LogReader(self._tell)
        self._wanted: Where | Place | None = None
        self._reads_behind = 0
        self._follow = True
        self._new_lines = 0
        self._announced: tuple[object, ...] = ()
        self._top = 0
        self._skip = 0
        """Rows of the first visible line that are above the pane, where lines are wrapped."""
        self._column = 0
        self._screen_rows: list[Strip] | None = None

    # --- what is shown -----------------------------------------------------------------------------------------------

    def show(self, log: MergedLog | LogFile | None, title: str = "", at: Place | None = None) -> None:
        """Shows a log from its end, and follows it.

        Args:
            log: one or more files; None for nothing.
            title: words for it, which `Changed` and the `title` attribute carry.
            at: a place from which it is shown instead.
        """
        if log is not None and not isinstance(log, MergedLog):
            log = MergedLog([log])
        self._log = log
        self.title = title
        self._wanted = None
        self._column = 0
        self._current = None
        self._drawn.clear()
        self.follow = at is None
        self._wanted = at
        self.poll()

    def poll(self) -> None:
        """Has the files looked at for more. To be called by a timer while the pane can be seen; returns at once."""
        log = self._log
        if log is None or self._reader.is_busy:
            return
        near_end = self._top + 2 * self.size.height >= self._count
        if self._wanted is not None or self._follow or near_end or not log.is_full:
            self._reader.ask(log, self._wanted or "newer")
            self._wanted = None

    @property
    def follow(self) -> bool:
        """Whether the pane goes along with the end of the log."""
        return self._follow

    @follow.setter
    def follow(self, follow: bool) -> None:
        self._follow = follow
        if follow:
            self._new_lines = 0
            if self._log is not None and not self._log.caught_up:
                self._wanted = "end"
            self._place(*self._end())
        self._announce()

    @property
    def new_lines(self) -> int:
        """Lines that arrived since the pane stopped following."""
        return self._new_lines

    @property
    def badge(self) -> str:
        """The state in a word or two: `follow`, `+1,234 new`, `paused`."""
        if self._follow:
            return "follow"
        return f"+{self._new_lines:,} new" if self._new_lines else "paused"

    def _state(self) -> tuple[object, ...]:
        """What `Changed` is about."""
        shown = LogFilter() if self._log is None else self._log.filter
        return self.title, shown.is_slow, shown.is_cut, self._follow, self._new_lines, self._current, self.wrap

    def _announce(self) -> None:
        state = self._state()
        if state != self._announced:
            self._announced = state
            self.post_message(self.Changed())

    # --- what arrives ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        self.post_message(self.Arrived())

    def on_log_pane_arrived(self) -> None:
        taken = self._reader.take()
        if taken is None:
            return
        log, batch = taken
        count = self._count
        partials = log.partials
        was_caught_up = log.caught_up
        log.apply(batch)
        for number in batch.changed:
            self._drawn.discard((number, number == self._current))
        if log is not self._log:
            self.poll()
            return
        if batch.where == "older":
            self._place(self._top + len(batch.lines), self._skip)
        elif isinstance(batch.where, Place):
            self._drawn.clear()
            self._arrived_around(batch)
        elif batch.where != "newer":
            self._drawn.clear()
            self._current = None
            self._place(*((0, 0) if batch.where == "start" else self._end()))
        elif batch.lines or batch.changed or batch.partials != partials:
            self._absorb_newer(log, count, len(batch.lines) if was_caught_up else 0)
        self._has_read(batch)
        if self._wanted is None and self._count < self.size.height:
            self._want_older()  # a filter lets little through
        self._announce()

    def _arrived_around(self, batch: Batch) -> None:
        """Shows the lines around a place that was asked for."""
        self._place(batch.place, 0)

    def _absorb_newer(self, log: MergedLog, count: int, new: int) -> None:
        if self._follow:
            log.trim(len(log.lines))
            self._place(*self._end())
            return
        self._new_lines += new
        self._top -= log.trim(max(0, self._top - self.size.height))
        if self._top + self.size.height >= count - len(log.partials):
            self._place(self._top, self._skip)
        else:
            self._set_extent()

    def _has_read(self, batch: Batch) -> None:
        """Asks for the next part at once where one read was not enough."""
        self._reads_behind = self._reads_behind + 1 if batch.more and self._follow else 0
        if self._reads_behind > CATCH_UP:
            self._wanted = "end"
            self._reads_behind = 0
        if batch.more or self._wanted is not None:
            self.poll()

    # --- where the pane stands ---------------------------------------------------------------------------------------

    def _end(self) -> tuple[int, int]:
        """(first line, rows of it that are above) of a pane whose last row is the log's last."""
        top, height = self._count, self.size.height
        if not self.wrap:
            return max(0, top - height), 0
        rows = 0
        while top > 0 and rows < height:
            top -= 1
            rows += len(self._rows(top))
        return top, max(0, rows - height)

    def _place(self, top: int, skip: int) -> None:
        """Goes to a line and draws the pane anew."""
        self._top, self._skip = max((0, 0), min((top, skip), self._end()))
        self._set_extent()
        self._screen_rows = None
        self.refresh()

    def _set_extent(self) -> None:
        """Tells Textual where the pane stands, without the layout of the whole screen that `virtual_size` would start."""
        extent = self._end()[0] + self.container_size.height
        self.set_reactive(LogPane.virtual_size, Size(self._width, extent))
        self.set_reactive(LogPane.scroll_target_y, float(self._top))
        self.set_reactive(LogPane.scroll_y, float(self._top))
        if self.show_vertical_scrollbar:
            # While following, only where it shows: painting the scrollbar costs as much as painting the text.
            bar = self.vertical_scrollbar
            grain = extent / max(1, self.size.height) if self._follow else 0
            if abs(bar.window_virtual_size - extent) > grain or abs(bar.position - self._top) > grain:
                bar.window_virtual_size = extent
                bar.position = self._top

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        # A pane that grows is clamped to its end by Textual: that is no reader scrolling up.
        if self._follow and round(new_value) >= self.max_scroll_y:
            self._place(*self._end())
        else:
            self._travel(min((round(new_value), 0), self._end()))

    def _travel(self, position: tuple[int, int]) -> None:
        """Goes where a reader wants to be."""
        if position < (self._top, self._skip) or (self._follow and position < self._end()):
            self._follow = False
        self._place(*position)
        if (self._top, self._skip) == (0, 0):
            self._want_older()
        self._announce()

    def _want_older(self) -> bool:
        if self._log is None or not self._log.has_older or self._log.is_full:
            return False
        self._wanted = "older"
        self.poll()
        return True

    def _moved(self, rows: int) -> tuple[int, int]:
        """The position so many rows further down."""
        top, skip = self._top, self._skip + rows
        if not self.wrap:
            return top + skip, 0
        while skip < 0 < top:
            top -= 1
            skip += len(self._rows(top))
        while skip > 0 and top < self._count and skip >= (height := len(self._rows(top))):
            top, skip = top + 1, skip - height
        return (top, max(0, skip))

    def watch_wrap(self) -> None:
        self._column = 0
        self._drawn.clear()
        self._place(*(self._end() if self._follow else (self._top, 0)))
        self._announce()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._place(*self._end())

    def on_unmount(self) -> None:
        self._reader.close()

    def on_resize(self, event: events.Resize) -> None:
        """Stays at the end, or on the first visible line."""
        if self.wrap:
            self._drawn.clear()
        self._place(*(self._end() if self._follow else (self._top, self._skip)))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._screen_rows = None

    def render_line(self, y: int) -> Strip:
        if self._screen_rows is None:
            self._screen_rows = self._screenful()
        if y < len(self._screen_rows):
            return self._screen_rows[y]
        if y == 0 and self._log is not None and self._log.caught_up and not self._count:
            style = self.get_component_rich_style("log-pane--empty")
            return Strip([Segment("The log is empty.", style)]).adjust_cell_length(self._width, style)
        return Strip.blank(self._width, self._base)

    def _screenful(self) -> list[Strip]:
        width, height = self._width, self.size.height
        rows: list[Strip] = []
        index, skip = self._top, self._skip
        while index < self._count and len(rows) < height:
            rows += self._rows(index)[skip:]
            index, skip = index + 1, 0
        base = self._base
        return [row.crop_extend(self._column, self._column + width, base) for row in rows[:height]]
