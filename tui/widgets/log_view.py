"""A growing log on the screen, with its keys. Textual 8.2.8's `RichLog` and `Log` can't be used for this: they pull a reader down, drift
once lines are dropped (textual#6311, #2991), and `Log(max_lines=…)` stops repainting when it is full."""

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from engine.core.log_levels import LEVELS
from tui.data.log.file import LogFile
from tui.data.log.filter import LogFilter
from tui.data.log.finder import LogFinder
from tui.data.log.merged import MergedLog, Place
from tui.data.log.pattern import PatternError
from tui.keys import bindings
from tui.text.cells import plain_line
from tui.text.log import empty_words, search_words
from tui.widgets.line_keys import LineKeys, line_width
from tui.widgets.log_follower import LogFollower
from tui.widgets.log_rows import PARTS, styles_of
from tui.widgets.text_pane import fitted_title

SIDEWAYS = 8  # cells that one key press moves sideways
LEAST = (0, LEVELS.index("warning"), LEVELS.index("error"))  # lowest levels shown, one key after the other


class LogView(LineKeys, ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a log. Its border shows the title, the search, and whether the view follows the end."""

    BINDINGS = bindings("list", "log")
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"log-view--{part}" for part in PARTS}

    wrap: var[bool] = var(False)  # whether long lines go on in the next row

    class Arrived(Message, bubble=False):
        """Something was read, or found. Posted from other threads."""

        def can_replace(self, message: Message) -> bool:
            """One look is enough."""
            return isinstance(message, LogView.Arrived)

    def __init__(self, *, ascii: bool = False, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._ascii = ascii
        self.shown = LogFollower(self._tell, self._moved, lambda: styles_of(self), ascii=ascii)
        """Reads, follows and searches the log."""
        self._title = ""
        self._filter = LogFilter()
        self._filter_error = ""
        self._announced: tuple[object, ...] = ()
        self._screenful: list[Strip] | None = None

    # --- what is shown -----------------------------------------------------------------------------------------------

    def show(self, log: MergedLog | LogFile | None, title: str = "", at: Place | None = None) -> None:
        """Shows one or more files from their end, or from a place, and follows them. A search and a filter go on."""
        log = MergedLog([log]) if isinstance(log, LogFile) else log
        if log is not None and log.filter is not self._filter and not (log.filter.is_empty and self._filter.is_empty):
            log = log.copy(self._filter)
        self._title = title
        self.shown.show(log, at)
        self._announce()

    def poll(self) -> None:
        """Has the files looked at for more. To be called by a timer while the view can be seen; returns at once."""
        self.shown.poll()

    @property
    def finder(self) -> LogFinder:
        return self.shown.finder

    @property
    def is_filtered(self) -> bool:
        return not self._filter.is_empty

    def filter(self, text: str | None = None, least: int | None = None) -> None:
        """Shows only some lines: see `LogFilter` for both. None: as before. A reader stays where he is."""
        self._filter_error, was = "", self._filter
        try:
            self._filter = LogFilter(was.text if text is None else text, was.least if least is None else least)
        except PatternError as error:
            self._filter_error = f"can't be filtered by: {error}"
        else:
            place = self.shown.place_in_view(self.shown.window.top)
            self.show(self.shown.log, self._title, place and place._replace(offset=max(0, place.offset - 1)))
        self._announce()

    def search(self, text: str | None) -> None:
        """Marks the matches of a regular expression, and goes to the nearest. None or empty ends the search."""
        self.shown.search(text)
        self._announce()

    @property
    def badge(self) -> str:
        """The state in a word or two: `follow`, `+1,234 new`, `paused`."""
        if self.shown.follows:
            return "follow"
        return f"+{self.shown.new_lines:,} new" if self.shown.new_lines else "paused"

    def _tell(self) -> None:
        self.post_message(self.Arrived())

    def on_log_view_arrived(self) -> None:
        self.shown.take()
        self._announce()

    def _announce(self) -> None:
        shown = self._filter
        state = (self._title, shown, shown.is_slow, self._filter_error, self.badge, self.finder.state)
        if state != self._announced:
            self._announced = state
            self._say()

    def _say(self) -> None:
        title = ", ".join(filter(None, (self._title, plain_line(self._filter.words))))
        self.border_title = fitted_title(self, title or "Log", ascii=self._ascii)
        finder = self.finder
        words = (
            self._filter_error or ("the filter takes too long, and is left out" if self._filter.is_slow else ""),
            search_words(finder.pattern, finder.found, finder.wrapped, finder.error),
            self.badge,
        )
        self.border_subtitle = Content(plain_line(", ".join(filter(None, words))))

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.shown.rows.has_colour = not self.app.no_color
        self.shown.stay()

    def on_unmount(self) -> None:
        self.shown.close()

    def _moved(self, anew: bool) -> None:
        """Tells Textual where the view stands, without the layout of the whole screen that `virtual_size` would start."""
        window = self.shown.window
        extent = window.end()[0] + self.container_size.height
        self.set_reactive(LogView.virtual_size, Size(self.shown.rows.width, extent))
        self.set_reactive(LogView.scroll_target_y, float(window.top))
        self.set_reactive(LogView.scroll_y, float(window.top))
        if self.show_vertical_scrollbar:
            # While following, only where it shows: painting the scrollbar costs as much as painting the text.
            bar = self.vertical_scrollbar
            grain = extent / max(1, self.size.height) if self.shown.follows else 0
            if abs(bar.window_virtual_size - extent) > grain or abs(bar.position - window.top) > grain:
                bar.window_virtual_size = extent
                bar.position = window.top
        if anew:
            self._screenful = None
            self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        # Textual moves a view that grows to its end. This does not mean that the user scrolls up.
        if self.shown.follows and round(new_value) >= self.max_scroll_y:
            self.shown.stay()
        else:
            self._travel(min((round(new_value), 0), self.shown.window.end()))

    def on_resize(self, event: events.Resize) -> None:
        """Stays at the end, or on the first visible line."""
        rows = self.shown.rows
        rows.width, self.shown.window.height = line_width(self), self.size.height
        if rows.wraps:
            rows.clear()
        self.shown.stay()
        self._say()  # a view that was not displayed had no width for the text

    def watch_wrap(self, wrap: bool) -> None:
        self.shown.rows.wraps = wrap
        self.shown.rows.clear()
        self.shown.window.column = self.shown.window.skip = 0
        self.shown.stay()

    def selection_updated(self, selection: Selection | None) -> None:
        self.shown.rows.selection = selection
        self.shown.rows.clear()
        self._moved(True)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.shown.rows.restyle()
        self._screenful = None

    def render_line(self, y: int) -> Strip:
        if self._screenful is None:
            self._screenful = self.shown.window.screenful()
        if y < len(self._screenful):
            return self._screenful[y]
        rows, log = self.shown.rows, self.shown.log
        if y == 0 and log is not None and not rows.count:
            words = empty_words(self._filter, whole=log.caught_up and not log.has_older)
            return Strip([Segment(words, rows.styles.empty)]).adjust_cell_length(rows.width, rows.styles.empty)
        return Strip.blank(rows.width, rows.styles.base)

    # --- keys --------------------------------------------------------------------------------------------------------

    def _travel(self, position: tuple[int, int]) -> None:
        self.shown.travel(position)
        self._announce()

    def _move(self, lines: int) -> None:
        position = self.shown.window.moved(lines)
        if lines < 0:
            self.shown.follows = False
        self._travel(max((0, 0), position))

    def action_first(self) -> None:
        self.shown.to_first()
        self._announce()

    def action_last(self) -> None:
        self.shown.follow(True)
        self.poll()
        self._announce()

    def action_follow(self) -> None:
        if self.shown.follows:
            self.shown.follow(False)
            self._announce()
        else:
            self.action_last()

    def action_next_match(self) -> None:
        self.finder.ask("next")

    def action_previous_match(self) -> None:
        self.finder.ask("previous")

    def action_errors(self) -> None:
        self.shown.search_errors()
        self._announce()

    def action_levels(self) -> None:
        self.filter(least=LEAST[(LEAST.index(self._filter.least) + 1) % len(LEAST)])

    def action_sideways(self, direction: int) -> None:
        if not self.wrap:
            self.shown.window.column = max(0, self.shown.window.column + direction * SIDEWAYS)
            self._moved(True)

    def action_toggle_wrap(self) -> None:
        self.wrap = not self.wrap

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return None if self.shown.log is None else (self.shown.rows.selected(selection), "\n")

    def action_copy(self) -> None:
        window = self.shown.window
        text = self.screen.get_selected_text() or self.shown.rows.plain(window.top, max(window.top + 1, window.bottom))
        self.app.copy_to_clipboard(text)
