"""The shown part of a growing log: reads the log, follows its end, and goes to matches. `LogView` is the widget around it. When lines
arrive, a view that follows moves to the end; others stay."""

from collections.abc import Callable

from tui.data.log.finder import LogFinder, Origin
from tui.data.log.merged import Batch, MergedLog, Place
from tui.data.log.reader import LogReader
from tui.widgets.log_rows import LogRows, Styles
from tui.widgets.log_window import LogWindow, Position


class LogFollower:
    """A reader, a search, rows and a window on them. `told` is called in other threads when `take` has something to do, `moved` when the
    view must be drawn."""

    def __init__(
        self, told: Callable[[], None], moved: Callable[[bool], None], styles: Callable[[], Styles], *, ascii: bool
    ) -> None:
        self._moved = moved
        self._reader = LogReader(told)
        self.finder = LogFinder(told)
        self.rows = LogRows(self.finder, styles, ascii=ascii)
        self.window = LogWindow(self.rows)
        self.follows = True  # whether the window goes along with the end of the log; see `follow`
        self.new_lines = 0  # lines that arrived since it stopped following

    @property
    def log(self) -> MergedLog | None:
        return self.rows.log

    def show(self, log: MergedLog | None, at: Place | None = None) -> None:
        """Shows a log from its end, and follows it; or from a place. A search goes on in it."""
        self.rows.log = log
        self.window.column = 0
        self.rows.current = None
        self.rows.clear()
        self._reader.wanted = None
        self.follow(at is None)
        self._reader.wanted = at
        self.poll()
        self.finder.go_on_in(log)

    def poll(self) -> None:
        """Has the files looked at for more; returns at once."""
        if (log := self.log) is not None:
            near_end = self.window.top + 2 * self.window.height >= self.rows.count
            self._reader.poll(log, newer=self.follows or near_end or not log.is_full)
        self.finder.look()

    def close(self) -> None:
        self._reader.close()
        self.finder.close()

    # --- moving ------------------------------------------------------------------------------------------------------

    def place(self, position: Position) -> None:
        self.window.place(position)
        self._moved(True)

    def stay(self) -> None:
        """Stays at the end, or on the first visible line, where rows have become more or fewer."""
        self.place(self.window.end() if self.follows else self.window.position)

    def follow(self, follows: bool) -> None:
        """Goes to the end and along with it, or stays."""
        self.follows = follows
        if follows:
            self.new_lines = 0
            if self.log is not None and not self.log.caught_up:
                self._reader.wanted = "end"
            self.place(self.window.end())

    def travel(self, position: Position) -> None:
        """Goes where a reader wants to be; any way up ends following."""
        if position < self.window.position or (self.follows and position < self.window.end()):
            self.follows = False
        self.place(position)
        if self.window.position == (0, 0):
            self._want_older()

    def to_first(self) -> None:
        """To the beginning of the files, not only of the lines in memory."""
        self.follows = False
        if self.log is not None and (self.log.has_older or not self.log.lines):
            self._reader.wanted = "start"
            self.poll()
        else:
            self.place((0, 0))

    def place_in_view(self, index: int) -> Place | None:
        """The place of the line at an index, which a search or a filter goes on from; None: the end is followed, or there is no such line."""
        if self.follows or self.log is None or not 0 <= index < len(self.log.lines):
            return None
        line = self.log.lines[index]
        return Place(line.source, line.end)

    # --- what arrives ------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Takes in the reader's lines and the results of the search."""
        if (taken := self._reader.take()) is not None:
            self._take(*taken)
        if (match := self.finder.take()) is not None:
            place, is_other = match
            before = self.rows.current
            if self._go_to(place) and before is not None and before == self.rows.current and is_other:
                self.finder.ask()  # the same line, of another rank

    def _take(self, log: MergedLog, batch: Batch) -> None:
        rows, window = self.rows, self.window
        count, partials, was_caught_up = rows.count, log.partials, log.caught_up
        log.apply(batch)
        for number in batch.changed:
            rows.discard(number)
        if log is not self.log:
            self.poll()
            return
        if batch.where == "older":
            self.place((window.top + len(batch.lines), window.skip))
        elif batch.where != "newer":
            rows.clear()
            found = self.finder.found
            if found is not None and found.place == batch.where:
                window.top, window.skip = batch.place + 1, 0  # a line above the view is gone to
                self._show_line(batch.place)
            elif isinstance(batch.where, Place):
                self.place((batch.place, 0))
            else:
                rows.current = None
                self.place((0, 0) if batch.where == "start" else window.end())
        elif batch.lines or batch.changed or batch.partials != partials:
            self.absorb(count, len(batch.lines) if was_caught_up else 0)
        if self._reader.catches_up(batch, follows=self.follows):
            self.poll()
        if self._reader.wanted is None and rows.count < window.height:
            self._want_older()  # a filter lets little through

    def absorb(self, count: int, new: int) -> None:
        """Goes along with new lines at the end of the `count` lines held before, or leaves the text under a reader where it is."""
        log, window = self.log, self.window
        assert log is not None
        if self.follows:
            log.trim(len(log.lines))
            self.place(window.end())
            return
        self.new_lines += new
        window.top -= log.trim(max(0, window.top - window.height))
        if window.top + window.height >= count - len(log.partials):
            self.place(window.position)
        else:
            self._moved(False)

    def _want_older(self) -> None:
        if self.log is not None and self.log.has_older and not self.log.is_full:
            self._reader.wanted = "older"
            self.poll()

    # --- searching ---------------------------------------------------------------------------------------------------

    def search(self, text: str | None) -> None:
        """Marks the matches of a regular expression and goes to the nearest above the end of the view, else below. None or empty ends the search."""
        origin: Origin = self.place_in_view(self.window.bottom) or "end"
        self.finder.seek(text, self.log, origin)
        self._mark_anew()

    def search_errors(self) -> None:
        """Goes to the first line that tells of an error."""
        self.finder.seek_errors(self.log)
        self._mark_anew()

    def _mark_anew(self) -> None:
        self.rows.current = None
        self.rows.clear()
        self.place(self.window.position)

    def _go_to(self, place: Place) -> bool:
        """Goes to a line. Returns whether it is held; if not, it is read, and gone to when it arrives."""
        assert self.log is not None
        self.follows = False
        index = self.log.index(place)
        if index is None:
            self._reader.wanted = place
            self.poll()
            return False
        self._show_line(index)
        return True

    def _show_line(self, index: int) -> None:
        assert self.log is not None
        self.rows.current = index + self.log.first
        self.window.show_line(index)
        self.place(self.window.position)
