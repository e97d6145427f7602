"""Curves of a metric over steps or time.

plotext draws them in a thread, at most twice a second and only for who can see them; what it drew is kept as finished lines.
The plotext widget that Textual points to draws anew on every repaint, a change of focus included.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import plotext
from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from engine.core.metrics.series import Series
from tui.data.curves import Curve, Curves, curves
from tui.numbers import duration, number
from tui.text.cells import Span, plain_line, segments_line
from tui.text.marks import ASCII_ODD, ODD

EVERY = 0.5
"""Seconds from one drawing to the next."""

SLOW_EVERY = 2.0
"""The same for a line with little bandwidth: a drawing is some kilobytes."""

SHARE = 0.05
"""Part of a core that drawing may take: hundreds of ranks are drawn less often."""

DARK = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (240, 228, 66), (213, 94, 0))
LIGHT = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (170, 80, 130), (120, 114, 33), (30, 140, 200))
"""Colours that people of every colour vision can tell apart (Okabe and Ito, 2008), for each kind of theme."""

ALARM = (213, 94, 0)
"""Of the same palette: marks where a value was not finite."""

MARKERS = {"braille": "⣤", "hd": "▟", "+": "+", "o": "o", "x": "x", "#": "#"}
ASCII_MARKERS = {"*": "*", "+": "+", "o": "o", ".": ".", "x": "x", "#": "#"}
"""How each curve is drawn, so that colour is not the only difference, and how the legend shows it."""

BAND_MARKERS = {"hd": "▟", "braille": "⣤"}
ASCII_BAND_MARKERS = {"*": "*", ".": "."}
"""The mean, then its band, which encloses it."""

RESTART = "┊"
ASCII_RESTART = ":"
"""From top to bottom, where a later attempt went on."""

QUIET = (128, 128, 128)
"""Its colour, which is no curve's."""

AXIS = 7
"""Cells of the vertical axis' numbers. They never change, so that the curves stay where they are."""

SMALLEST = (24, 5)
"""Cells below which there is no chart but a line of text."""

SWATCH = 4
"""Cells of a curve's sign in the legend, with those around it."""

_ASCII_FRAME = str.maketrans("┌┐└┘─│┬┴├┤┼", "++++-|+++++")

# plotext has one figure for everybody.
_PLOTEXT = threading.Lock()


class Request(NamedTuple):
    """Everything that a drawing depends on."""

    series: tuple[tuple[str, Series], ...]
    width: int
    height: int
    dark: bool
    ascii: bool


class Ticks(NamedTuple):
    """(value, label) of the places that are marked on each axis."""

    x: list[tuple[float, str]]
    y: list[tuple[float, str]]


class Picture(NamedTuple):
    """Finished lines: text and colours."""

    lines: list[tuple[str, list[Span]]]
    names: list[tuple[str, str, Style]]
    """(swatch, name, style) of each curve."""


class Chart(Widget):
    """A title, a legend and the curves of some series. More than four are drawn as their mean in a band."""

    ALLOW_SELECT = False

    COMPONENT_CLASSES: ClassVar[set[str]] = {"chart--title", "chart--frame", "chart--empty"}

    DEFAULT_CSS = """
    Chart {
        background: $surface;
        color: $foreground;

        & > .chart--title { text-style: bold; }
        & > .chart--frame { color: $text-muted; }
        & > .chart--empty { color: $text-muted; }
    }
    """

    class Drawn(Message, bubble=False):
        """The thread has finished a picture."""

        def __init__(self, request: Request, picture: Picture | None, seconds: float) -> None:
            super().__init__()
            self.request = request
            self.picture = picture
            self.seconds = seconds

    def __init__(
        self,
        *,
        ascii: bool = False,  # noqa: A002  named after the command line's flag
        slow: bool = False,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  Textual's word
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self.ascii = ascii
        self.every = SLOW_EVERY if slow else EVERY
        self._title = ""
        self._series: tuple[tuple[str, Series], ...] = ()
        self._picture: Picture | None = None
        self._is_drawing = False
        self._due_at = -math.inf
        self._drawn_state: object = None
        self._strips: list[Strip] | None = None

    def set_series(self, title: str, curves: Sequence[tuple[str, Series]]) -> None:
        """Shows other values. May be called as often as values come: nothing is drawn when nothing has changed.

        Args:
            title: name of the metric, with its unit.
            curves: the series and what they are called; they may grow meanwhile.
        """
        if title != self._title:
            self._title = title
            self._strips = None
            self.refresh()
        self._series = tuple(curves)
        self._draw_if_due()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Begins to look for changes."""
        self.set_interval(self.every, self._draw_if_due)

    def on_resize(self) -> None:
        """Draws for the new size."""
        self._strips = None
        self._draw_if_due()

    def notify_style_update(self) -> None:
        """Forgets what was drawn in the old theme."""
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
        request = Request(self._series, width, height - self._legend(), self.app.current_theme.dark, self.ascii)
        state = (request[1:], self._contents())
        if state == self._drawn_state:
            return
        self._drawn_state = state
        self._due_at = time.monotonic() + self.every
        self._is_drawing = True
        drawing = self._drawing(request)
        self.run_worker(lambda: self._draw(request, drawing), thread=True, exit_on_error=False, group="chart")

    def _contents(self) -> object:
        """What is different when there is something else to draw."""
        return [_state(name, series) for name, series in self._series]

    def _drawing(self, request: Request) -> Callable[[], Picture | None]:
        """Draws, in a thread."""
        return lambda: picture(request)

    def _legend(self) -> int:
        """Lines of the title and the legend."""
        return 1

    def _words(self) -> str:
        """Stands in for a picture."""
        latest = [text for name, series in self._series[:1] if (text := _latest(name, series))]
        return latest[0] if latest else "no values yet"

    def on_show(self) -> None:
        """Draws what has changed while nobody could see it."""
        self._draw_if_due()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Tries again after a picture that could not be drawn."""
        if event.state is WorkerState.ERROR:
            self._is_drawing = False

    def _draw(self, request: Request, drawing: Callable[[], Picture | None]) -> None:
        begin = time.thread_time()
        result = drawing()
        self.post_message(self.Drawn(request, result, time.thread_time() - begin))

    def on_chart_drawn(self, message: Drawn) -> None:
        """Shows what the thread has drawn."""
        self._is_drawing = False
        self._due_at = time.monotonic() + max(self.every, message.seconds / SHARE)
        if message.request.width == self.size.width:
            self._picture = message.picture
        self._strips = None
        self.refresh()

    # --- painting ----------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line: the title, then the picture."""
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
        lines = lines_of([len(self._title), *(len(name) + SWATCH for _, name, _ in picture.names)], width)
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


def lines_of(lengths: Sequence[int], width: int) -> list[int]:
    """In which line each of some pieces stands, where a line takes as many as fit.

    Args:
        lengths: cells of the pieces.
        width: cells of a line.
    """
    lines: list[int] = []
    line = taken = 0
    for length in lengths:
        if taken and taken + length > width:
            line, taken = line + 1, 0
        lines.append(line)
        taken += length
    return lines


def _state(name: str, series: Series) -> tuple[object, ...]:
    """What is different after a point was added."""
    last = series.buckets[-1] if series.buckets else None
    return name, id(series), len(series.buckets), last and (last.end, last.count)


def _latest(name: str, series: Series) -> str:
    return f"{plain_line(name)} {number(series.last, AXIS).strip()}" if series.last is not None else ""


def picture(request: Request) -> Picture | None:
    """Draws curves with plotext. Takes a few milliseconds; for a thread.

    Returns:
        None while there is no finite value.
    """
    found = curves(request.series, request.width - AXIS - 1)
    return None if found is None else draw_curves(found, request)


def draw_curves(found: Curves, request: Request, ticks: Ticks | None = None) -> Picture:
    """Draws curves.

    Args:
        found: what to draw.
        request: how large, and for which theme.
        ticks: what stands at the axes; None: steps or seconds, and values.
    """
    with _PLOTEXT:
        text = _plotted(found, request, ticks)
    if request.ascii:
        text = text.translate(_ASCII_FRAME)
    names = [
        (markers[1], curve.name, Style(color=f"rgb({','.join(map(str, colour))})"))
        for curve, markers, colour in _drawn_as(found, request)
    ]
    return Picture([segments_line(line) for line in text.splitlines()][: request.height], names)


def _drawn_as(found: Curves, request: Request) -> Iterable[tuple[Curve, tuple[str, str], tuple[int, int, int]]]:
    """Each curve with its (marker, swatch) and its colour."""
    if found.is_band:
        line, edge = (ASCII_BAND_MARKERS if request.ascii else BAND_MARKERS).items()
        markers = [line, edge, edge]
    else:
        markers = list((ASCII_MARKERS if request.ascii else MARKERS).items())
    return zip(found.curves, markers, DARK if request.dark else LIGHT, strict=False)


def _plotted(found: Curves, request: Request, ticks: Ticks | None) -> str:
    """The figure as text with SGR colours."""
    figure = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(request.width, request.height)
    figure.axes(False, axis="x", side="upper").axes(False, axis="y", side="right")
    x_axis, y_axis = _Axis(*found.x_range), _Axis(*found.y_range)
    for step in found.restarts:
        high = [row / request.height for row in range(request.height + 1)]
        mark = ASCII_RESTART if request.ascii else RESTART
        figure.draw(_signal([x_axis.place(step)] * len(high), high, mark, QUIET, lines=False))
    # The first curve is the one to see: it is drawn last.
    for curve, (marker, _), colour in reversed(list(_drawn_as(found, request))):
        if curve.x:
            figure.draw(_signal(map(x_axis.place, curve.x), map(y_axis.place, curve.y), marker, colour))
    if found.odd:
        top = [1.0] * len(found.odd)
        mark = ASCII_ODD if request.ascii else ODD
        figure.draw(_signal(map(x_axis.place, found.odd), top, mark, ALARM, lines=False))
    ticks = ticks or _linear_ticks(found, request, x_axis, y_axis)
    figure.ruler("y", "left").lim(0, 1).ticks(*_placed(ticks.y, y_axis))
    figure.ruler("x", "lower").lim(0, 1).ticks(*_placed(ticks.x, x_axis))
    text: str = figure.build().string()
    return text


def _linear_ticks(found: Curves, request: Request, x_axis: _Axis, y_axis: _Axis) -> Ticks:
    places = [0.0, 1 / 3, 2 / 3, 1.0] if request.height >= 8 else [0.0, 1.0]
    values = [y_axis.value(place) for place in places]
    span = x_axis.high - x_axis.low
    parts = min(4, max(1, round(span))) if found.by_step else 4
    steps = [x_axis.value(part / parts) for part in range(parts + 1)]
    return Ticks(
        [(step, str(round(step)) if found.by_step else duration(step)) for step in steps],
        [(value, number(value, AXIS)) for value in values],
    )


def _placed(ticks: Sequence[tuple[float, str]], axis: _Axis) -> tuple[list[float], list[str]]:
    return [axis.place(value) for value, _ in ticks], [label for _, label in ticks]


def _signal(
    x: Iterable[float], y: Iterable[float], marker: str, colour: tuple[int, int, int], *, lines: bool = True
) -> object:
    pixel = plotext.pixel(foreground=colour)
    return plotext.figure.signal(list(x), list(y), marker=plotext.marker(marker, pixel=pixel)).lines(lines)


class _Axis:
    """Places between 0 and 1: plotext 6.1 raises OverflowError where the difference of two values is infinite."""

    def __init__(self, low: float, high: float) -> None:
        margin = 0.0 if low < high else abs(low) * 0.05 or 0.5
        self.low = max(low - margin, -sys.float_info.max)
        self.high = min(high + margin, sys.float_info.max)

    def place(self, value: float) -> float:
        """Where a value stands."""
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2 or 1.0)

    def value(self, place: float) -> float:
        """What stands at a place."""
        return self.low * (1 - place) + self.high * place
