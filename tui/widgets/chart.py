"""Curves of a metric over steps or time. plotext draws them in a thread, at most twice a second and only for who can see them; its output
is kept as finished lines. The plotext widget that Textual points to draws again on every repaint, a change of focus included."""

import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from engine.core.metrics.series import Series
from engine.core.numbers import number
from tui.data.curves import Look
from tui.text.cells import plain_line
from tui.text.plot import AXIS, Picture, Request, picture

EVERY = 0.5  # seconds from one drawing to the next
SLOW_EVERY = 2.0  # for a line with little bandwidth, because a drawing is some kilobytes

SHARE = 0.05  # largest part of a core that drawing uses: hundreds of ranks are therefore drawn less often

SMALLEST = (24, 5)  # cells below which there is no chart but a line of text
SWATCH = 4  # cells of a curve's sign in the legend, with those around it


class Chart(Widget):
    """A title, a legend and the curves of some series. More than `Look.most` are drawn as their mean in a band."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"chart--title", "chart--frame", "chart--empty"}

    def __init__(self, *, ascii: bool = False, slow: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.ascii = ascii
        self.every = SLOW_EVERY if slow else EVERY
        self._title = ""
        self._series: tuple[tuple[str, Series], ...] = ()
        self.look = Look()
        self._picture: Picture | None = None
        self._is_drawing = False
        self._due_at = -math.inf
        self._drawn_state: object = None
        self._strips: list[Strip] | None = None

    def set_series(self, title: str, curves: Sequence[tuple[str, Series]]) -> None:
        """Shows other values; the series may grow meanwhile. May be called as often as values come: nothing is drawn when nothing has changed."""
        if title != self._title:
            self._title = title
            self._strips = None
            self.refresh()
        self._series = tuple(curves)
        self._draw_if_due()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(self.every, self._draw_if_due)

    def on_resize(self) -> None:
        self._strips = None
        self._draw_if_due()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = None

    @property
    def _is_seen(self) -> bool:
        # In Textual 8.2.8 `is_current` also holds for the screen below one that covers it.
        return (
            self.is_mounted
            and self.is_on_screen
            and self.screen.is_current
            and (self.screen is self.app.screen or self.app.screen.is_modal)
        )

    def _draw_if_due(self) -> None:
        if self._is_drawing or not self._is_seen:
            return
        width, height = self.size
        if width < SMALLEST[0] or height < SMALLEST[1] or time.monotonic() < self._due_at:
            return
        request = Request(
            self._series, width, height - self._legend(), self.app.current_theme.dark, self.ascii, self.look
        )
        state = (request[1:], self._contents())
        if state == self._drawn_state:
            return
        self._drawn_state = state
        self._due_at = time.monotonic() + self.every
        self._is_drawing = True
        drawing = self._drawing(request)

        def draw() -> tuple[int, Picture | None, float]:
            begin = time.thread_time()
            return width, drawing(), time.thread_time() - begin

        self.run_worker(draw, thread=True, exit_on_error=False, group="chart")

    def _contents(self) -> object:
        """A value that changes whenever the picture would change."""
        return [_state(name, series) for name, series in self._series]

    def _drawing(self, request: Request) -> Callable[[], Picture | None]:
        return lambda: picture(request)

    def _legend(self) -> int:
        return 1

    def _words(self) -> str:
        for name, series in self._series[:1]:
            if series.last is not None:
                return f"{plain_line(name)} {number(series.last, AXIS).strip()}"
        return "no values yet"

    def on_show(self) -> None:
        """Draws the changes made while the chart was hidden."""
        self._draw_if_due()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Shows the picture, or tries again after one that could not be drawn."""
        if event.state in (WorkerState.SUCCESS, WorkerState.ERROR):
            self._is_drawing = False
        if event.state is WorkerState.SUCCESS and event.worker.result is not None:
            width, picture, seconds = event.worker.result
            self._due_at = time.monotonic() + max(self.every, seconds / SHARE)
            if width == self.size.width:
                self._picture = picture
            self._strips = None
            self.refresh()

    # --- painting ----------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        if self._strips is None:
            self._strips = self._painted()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def _painted(self) -> list[Strip]:
        width = self.size.width
        base = self.rich_style
        head = [Segment(plain_line(self._title), self.get_component_rich_style("chart--title"))]
        picture = self._picture
        if picture is None or width < SMALLEST[0] or self.size.height < SMALLEST[1]:
            empty = self.get_component_rich_style("chart--empty")
            return [Strip([*head, Segment(f"  {self._words()}", empty)]).adjust_cell_length(width, base)]
        heads = [head, *([] for _ in range(self._legend() - 1))]
        taken, names = len(head[0].text), [len(name) + SWATCH for _, name, _ in picture.names]
        for said in self._smoothing_words(picture):
            lines = lines_of([taken + len(said), *names], width)
            if lines[-1] < len(heads):
                break
        head += [Segment(said, base)] if said else []
        for line, (swatch, name, style) in zip(lines[1:], picture.names, strict=True):
            heads[min(line, len(heads) - 1)] += [
                Segment("  ", base),
                Segment(swatch, base + style),
                Segment(f" {plain_line(name)}", base),
            ]
        strips = [Strip(segments).adjust_cell_length(width, base) for segments in heads]
        frame = self.get_component_rich_style("chart--frame")
        for text, spans in picture.lines:
            segments: list[Segment] = []
            begin = 0
            for start, end, style in spans:
                segments += [Segment(text[begin:start], frame), Segment(text[start:end], base + style)]
                begin = end
            segments.append(Segment(text[begin:], frame))
            strips.append(Strip(segment for segment in segments if segment.text).adjust_cell_length(width, base))
        return strips

    def _smoothing_words(self, picture: Picture) -> tuple[str, ...]:
        """How a smoothing is named that nobody has asked for: the first of these beside which the legend has room for all names."""
        if self.look.smoothing is not None or not picture.smoothing:
            return ("",)
        return (f", smoothed {picture.smoothing:g}", f" ~{picture.smoothing:g}", "")


def lines_of(lengths: Sequence[int], width: int) -> list[int]:
    """The line of each piece, if each line of `width` cells contains as many pieces as fit. `lengths`: cells of the pieces."""
    lines: list[int] = []
    line = taken = 0
    for length in lengths:
        if taken and taken + length > width:
            line, taken = line + 1, 0
        lines.append(line)
        taken += length
    return lines


def _state(name: str, series: Series) -> tuple[object, ...]:
    """A value that changes whenever a point is added."""
    last = series.buckets[-1] if series.buckets else None
    return name, id(series), len(series.buckets), last and (last.end, last.count)
