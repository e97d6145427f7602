"""Measured collectives as a table, and as curves over size on logarithmic axes. Pure."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from textual.content import Content

from engine.core.metrics.bench import Result, moved_words, rate_words, time_words
from engine.core.numbers import number
from tui.data.curves import Curve, Curves
from tui.text.marks import MUTED

Measure = Literal["latency", "busbw", "algbw"]

MEASURES: dict[Measure, str] = {
    "latency": "latency",
    "busbw": "bus bandwidth in GB/s",
    "algbw": "algorithm bandwidth in GB/s",
}
"""Measures that are drawn over size, with their titles."""

TABLE = 52  # cells of a line of the table
LABELS = 5  # marks of an axis, at most
MOST_CURVES = 6  # collectives that move something, of which a chart has a colour and a marker for each
LEAST = 1e-9  # smallest value that is drawn: nothing is moved over a bus of one rank
AXIS = 7  # cells of a number beside the vertical axis


def bench_table(results: Sequence[Result]) -> Content:
    """A block for each collective and type, in the order in which they were measured."""
    if not results:
        return Content("Nothing has been measured yet.")
    lines: list[Content | str] = []
    for kind in dict.fromkeys(result.key[:2] for result in results):
        title = f"{'size':>8}{'calls':>7}{'median':>9}{'p95':>9}{'algbw':>9}{'busbw':>9}"
        lines += ["", Content.styled(", ".join(kind), "bold"), Content.styled(title, MUTED)]
        lines += [_row(result) for result in results if result.key[:2] == kind]
    return Content("\n").join([*lines[1:], "", Content.styled("of the slowest rank; bandwidths in GB/s", MUTED)])


def _row(result: Result) -> str:
    times = f"{time_words(result.median_us):>9}{time_words(result.p95_us):>9}"
    rates = f"{rate_words(result.algbw):>9}{rate_words(result.busbw):>9}"
    return f"{moved_words(result.bytes):>8}{result.repetitions:7}{times}{rates}"


def bench_curves(results: Iterable[Result], measure: Measure) -> Curves | None:
    """A curve for each collective and type, in powers of 2 and of 10; None while there is nothing to draw."""
    shown = []
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for result in results:
        value = {"latency": result.median_us, "busbw": result.busbw, "algbw": result.algbw}[measure]
        if result.bytes and value is not None:
            shown.append(result)
            place = math.log2(result.bytes), math.log10(max(value, LEAST))
            points.setdefault(result.key[:2], []).append(place)
    if not points:
        return None
    drawn = [
        Curve(name, [x for x, _ in found], [y for _, y in found])
        for name, found in zip(curve_names(shown), map(sorted, points.values()), strict=False)
    ]
    x = [place for curve in drawn for place in curve.x]
    y = [place for curve in drawn for place in curve.y]
    return Curves(drawn, 0.0, [], [], False, (min(x), max(x)), (min(y), max(y)))


def curve_names(results: Iterable[Result]) -> list[str]:
    """Names of the curves: the collective, and the type where there are several types."""
    kinds = list(dict.fromkeys(result.key[:2] for result in results if result.bytes))[:MOST_CURVES]
    several = len({dtype for _, dtype in kinds}) > 1
    return [" ".join(kind) if several else kind[0] for kind in kinds]


def size_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of 2 between two exponents, as exponent and size."""
    exponents = range(math.ceil(low), math.floor(high) + 1)
    step = max(1, math.ceil(len(exponents) / LABELS))
    return [(float(one), moved_words(2**one)) for one in exponents[::step]] or [(low, moved_words(round(2**low)))]


def value_ticks(low: float, high: float, measure: Measure) -> list[tuple[float, str]]:
    """Powers of 10 between two exponents, or both ends if there are too few, as exponent and value."""
    exponents = range(math.ceil(low), math.floor(high) + 1)
    step = max(1, math.ceil(len(exponents) / LABELS))
    places = [float(exponent) for exponent in exponents[::step]] if len(exponents) > 1 else sorted({low, high})
    return [(place, _label(10**place, measure)) for place in places]


def _label(value: float, measure: Measure) -> str:
    if measure == "latency":
        return re.sub(r"\.0+ ", " ", time_words(value))
    short = f"{value:g}"
    return short if len(short) <= AXIS else number(value, AXIS).strip()
