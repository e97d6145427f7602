"""Curves drawn with plotext, as finished lines of text with colours. For a thread: a drawing takes milliseconds."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import plotext
from rich.style import Style

from engine.core.metrics.series import Series
from engine.core.numbers import duration, number
from tui.data.curves import Curve, Curves, Look, curves
from tui.text.cells import Span, segments_line
from tui.text.marks import signs, to_ascii

DARK = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (240, 228, 66), (213, 94, 0))
LIGHT = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (170, 80, 130), (120, 114, 33), (30, 140, 200))
"""Colours that people of every colour vision can tell apart (Okabe and Ito, 2008), for each kind of theme."""

ALARM = (213, 94, 0)  # A colour of the same palette. It marks where a value was not finite.
MARKER, SWATCH = "braille", "⣤"
ASCII_MARKER = "."  # how every curve is drawn, and how the legend shows it

SIGNS = ("●", "▲", "■", "◆", "+", "#")
ASCII_SIGNS = ("*", "+", "o", "x", "#", "@")  # of each curve at a few places: colour is not the only difference
SIGNED = 5  # places of a curve that have its sign

RESTART = "┊"
ASCII_RESTART = ":"  # drawn from top to bottom where a later attempt went on
QUIET = (128, 128, 128)  # the colour of this line, and of faint curves
AXIS = 7  # Cells of the vertical axis' numbers. They never change, so that the curves stay where they are.

# plotext has one figure for everybody.
_PLOTEXT = threading.Lock()


class Request(NamedTuple):
    """Everything that a drawing depends on."""

    series: tuple[tuple[str, Series], ...]
    width: int
    height: int
    dark: bool
    ascii: bool
    look: Look = Look()


class Ticks(NamedTuple):
    """(value, label) of the places that are marked on each axis."""

    x: list[tuple[float, str]]
    y: list[tuple[float, str]]


class Picture(NamedTuple):
    """Finished lines: text and colours."""

    lines: list[tuple[str, list[Span]]]
    names: list[tuple[str, str, Style]]  # (swatch, name, style) of each curve
    smoothing: float = 0.0


def picture(request: Request) -> Picture | None:
    """Draws curves with plotext; None while there is no finite value. Takes a few milliseconds; for a thread."""
    found = curves(request.series, request.width - AXIS - 1, request.look)
    return None if found is None else draw_curves(found, request)


def draw_curves(found: Curves, request: Request, ticks: Ticks | None = None) -> Picture:
    """Draws curves; `ticks`: the texts at the axes, instead of steps or seconds, and values."""
    with _PLOTEXT:
        text = _plotted(found, request, ticks)
    if request.ascii:
        text = to_ascii(text)
    swatch = ASCII_MARKER if request.ascii else SWATCH
    drawn = [one for one in _drawn_as(found, request) if one[0].name]
    names = [(sign or swatch, curve.name, Style(color=rgb(colour))) for curve, sign, colour in drawn]
    return Picture([segments_line(line) for line in text.splitlines()][: request.height], names, found.smoothing)


def drawn_as(index: int, *, dark: bool, ascii: bool) -> tuple[str, tuple[int, int, int]]:
    """The sign and the colour of a curve. No two of the first 36 have both alike."""
    own, colours = ASCII_SIGNS if ascii else SIGNS, DARK if dark else LIGHT
    return own[(index + index // len(colours)) % len(own)], colours[index % len(colours)]


def rgb(colour: tuple[int, int, int]) -> str:
    """A colour as styles name it."""
    return f"rgb({','.join(map(str, colour))})"


def _drawn_as(found: Curves, request: Request) -> Iterable[tuple[Curve, str, tuple[int, int, int]]]:
    loud = [curve for curve in found.curves if not curve.is_faint]
    # The mean keeps its colour when a rank is drawn above its band.
    numbers = range(len(loud)) if len(loud) == len(found.curves) else reversed(range(len(loud)))
    for curve, at in zip(loud, numbers, strict=True):
        sign, colour = drawn_as(at, dark=request.dark, ascii=request.ascii)
        yield curve, sign if len(loud) > 1 else "", colour
    yield from ((curve, "", QUIET) for curve in found.curves if curve.is_faint)


def _spread(values: Sequence[float], curve: int) -> Sequence[float]:
    """Some points of a curve, at other places than the points of other curves. `curve`: its number."""
    step = max(1, len(values) // SIGNED)
    return values[min(len(values) - 1, step * (1 + 2 * curve % 7) // 8) :: step]


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
    marker = ASCII_MARKER if request.ascii else MARKER
    drawn = [one for one in _drawn_as(found, request) if one[0].x]
    for curve, _, colour in reversed(drawn):
        figure.draw(_signal(map(x_axis.place, curve.x), map(y_axis.place, curve.y), marker, colour))
    for index, (curve, sign, colour) in reversed(list(enumerate(drawn))):
        if sign:
            x, y = _spread(curve.x, index), _spread(curve.y, index)
            figure.draw(_signal(map(x_axis.place, x), map(y_axis.place, y), sign, colour, lines=False))
    if found.odd:
        top = [1.0] * len(found.odd)
        mark = signs(ascii=request.ascii).odd
        figure.draw(_signal(map(x_axis.place, found.odd), top, mark, ALARM, lines=False))
    ticks = ticks or _linear_ticks(found, request, x_axis, y_axis)
    figure.ruler("y", "left").lim(0, 1).ticks(*_placed(ticks.y, y_axis))
    figure.ruler("x", "lower").lim(0, 1).ticks(*_placed(ticks.x, x_axis))
    text: str = figure.build().string()
    return text


def _linear_ticks(found: Curves, request: Request, x_axis: _Axis, y_axis: _Axis) -> Ticks:
    for most in (6, 3, 2):
        values = _round_values(y_axis.low, y_axis.high, most if request.height >= 8 else 2, log=request.look.log)
        labels = _value_labels([10**value if request.look.log else value for value in values])
        if len(set(labels)) == len(labels):
            break
    if found.by_step:
        steps = _multiples(x_axis.low, x_axis.high, 6, least=1.0)
    else:
        steps = [x_axis.value(part / 4) for part in range(5)]
    return Ticks(
        [(step, str(round(step)) if found.by_step else duration(step)) for step in steps],
        list(zip(values, labels, strict=True)),
    )


def _round_values(low: float, high: float, most: int, *, log: bool) -> list[float]:
    """Round values from `low` to `high`; both of these if there are fewer than two. `log`: values are logarithms, and what they are the
    logarithms of is round."""
    if not log:
        values = _multiples(low, high, most)
    elif high - low >= 2:
        values = _multiples(low, high, most, least=1.0)
    else:
        values = [math.log10(value) for value in _multiples(10**low, 10**high, most)]
    return values if len(values) > 1 else [low, high]


def _multiples(low: float, high: float, most: int, *, least: float = 0.0) -> list[float]:
    """At most `most` + 1 multiples of 1, 2 or 5 times a power of ten, and of at least `least`, from `low` to `high`."""
    power = 10.0 ** math.floor(math.log10(high / most - low / most))
    sizes = (size * power for size in (1, 2, 5, 10) if size * power >= least)
    step = next((size for size in sizes if high / size - low / size <= most), least or 10 * power)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _value_labels(values: Sequence[float]) -> list[str]:
    """Labels of an axis, with more digits where different values would have the same one and more fit."""
    labels = [number(value, AXIS) for value in values]
    for digits in (4, 5, 6):
        longer = [f"{value:.{digits}g}".rjust(AXIS) for value in values]
        if len(set(labels)) < len(set(values)) and max(map(len, longer)) == AXIS:
            labels = longer
    return labels


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
        if low == high == 0:
            high = 1.0  # most of what is 0 can't be less: times, counts, sizes
        margin = 0.0 if low < high else abs(low) * 0.05 or 0.5
        self.low = max(low - margin, -sys.float_info.max)
        self.high = min(high + margin, sys.float_info.max)

    def place(self, value: float) -> float:
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2 or 1.0)

    def value(self, place: float) -> float:
        return self.low * (1 - place) + self.high * place
