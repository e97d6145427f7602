"""A chart of a metric as SVG: thin lines for ranks, a strong one for their mean, gaps where values are not finite."""

import math
from collections.abc import Sequence
from html import escape

from engine.core.metrics.series import Bucket, SeriesDump, overlay
from engine.core.terminal_text import visible

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 15, 30, 35  # pixels around the curves
MOST_RANKS = 64  # ranks that have lines of their own; the mean is of all

TICKS = 5

INK, FRAME, RANK, MEAN, ALARM = "#222222", "#888888", "#9ecae9", "#0072b2", "#d55e00"
"""Colours that people of every colour vision can tell apart (Okabe and Ito, 2008)."""


def chart_svg(dumps: Sequence[SeriesDump], metric: str, begin: float) -> str | None:
    """One chart. `begin`: when the run was launched, seconds since the epoch. Returns an SVG element that needs nothing else; None: there
    is no finite value."""
    own = [dump for dump in dumps if dump.key == metric]
    ranks = [one for dump in own[:MOST_RANKS] if (one := overlay([dump], metric, begin)) is not None]
    mean = overlay(own, metric, begin)
    if mean is None:
        return None
    lines = [(series.buckets, RANK, 1.0) for series in ranks] if len(own) > 1 else []
    lines.append((mean.buckets, MEAN, 2.0))
    every = [bucket for buckets, _, _ in lines for bucket in buckets]
    by_step = all(bucket.step is not None for bucket in every)
    values = [bucket.last for bucket in every if bucket.last is not None and math.isfinite(bucket.last)]
    if not values:
        return None
    x_axis = _Axis([_place(bucket, by_step) for bucket in every], LEFT, WIDTH - RIGHT)
    y_axis = _Axis(values, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12" role="img">',
        f"<title>{_text(metric)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" fill="{INK}" font-weight="bold">{_text(metric)}</text>',
        *_frame(x_axis, y_axis, "step" if by_step else "seconds"),
    ]
    for buckets, colour, width in lines:
        parts += _line(buckets, x_axis, y_axis, by_step, colour, width)
    odd = [x_axis.place(_place(bucket, by_step)) for bucket in mean.buckets if bucket.odd]
    parts += [f'<text x="{place:.1f}" y="{TOP + 10}" fill="{ALARM}" text-anchor="middle">x</text>' for place in odd]
    return "\n".join([*parts, "</svg>"])


class _Axis:
    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.low == self.high:
            margin = abs(self.low) * 0.05 or 0.5
            self.low, self.high = self.low - margin, self.high + margin
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        part = (value / 2 - self.low / 2) / ((self.high / 2 - self.low / 2) or 1.0)
        return self._first + part * (self._last - self._first)

    def ticks(self) -> list[float]:
        parts = (index / (TICKS - 1) for index in range(TICKS))
        return [self.low * (1 - part) + self.high * part for part in parts]


def _place(bucket: Bucket, by_step: bool) -> float:
    return float(bucket.step) if by_step and bucket.step is not None else bucket.end


def _frame(x_axis: _Axis, y_axis: _Axis, unit: str) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" fill="none" stroke="{FRAME}"/>']
    for value in x_axis.ticks():
        place = x_axis.place(value)
        parts.append(f'<text x="{place:.1f}" y="{floor + 16}" fill="{INK}" text-anchor="middle">{round(value)}</text>')
    for value in y_axis.ticks():
        place = y_axis.place(value)
        parts.append(f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{place + 4:.1f}" fill="{INK}" text-anchor="end">{value:.4g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" fill="{FRAME}" text-anchor="end">{unit}</text>')
    return parts


def _line(
    buckets: Sequence[Bucket], x_axis: _Axis, y_axis: _Axis, by_step: bool, colour: str, width: float
) -> list[str]:
    words: list[str] = []
    pen = "M"
    for bucket in buckets:
        if bucket.last is None or not math.isfinite(bucket.last):
            pen = "M"
            continue
        words.append(f"{pen}{x_axis.place(_place(bucket, by_step)):.1f} {y_axis.place(bucket.last):.1f}")
        pen = "L"
    drawn = f'fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"'
    return [f'<path d="{"".join(words)}" {drawn}/>'] if words else []


def _text(text: str) -> str:
    return escape(visible(text))
