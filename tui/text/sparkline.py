"""A series of numbers in one line of text: newest on the right, one value per cell, on a scale that is always shown whole.

Textual's own `Sparkline` raises ValueError on NaN and infinity (8.2.8), stretches a short series over its width and draws a
constant one as empty; a diverged loss must neither end the app nor look like a good one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui.text.marks import ASCII_BLOCKS, ASCII_ODD, BLOCKS, ODD


def sparkline(
    values: Sequence[float | None],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
    ascii: bool = False,  # noqa: A002  named after the command line's flag
) -> str:
    """Draws the newest values, each in one cell.

    Args:
        values: oldest first. None and what is not finite are marked instead of drawn.
        width: cells. A shorter series leaves its left empty.
        low: the scale's lower end; left out, the lowest value shown.
        high: the scale's upper end; left out, the highest value shown.
        ascii: draws with ASCII characters.

    Returns:
        Exactly `width` characters of one cell each. A series that does not change is a line at half height.
    """
    if width <= 0:
        return ""
    blocks, odd = (ASCII_BLOCKS, ASCII_ODD) if ascii else (BLOCKS, ODD)
    shown = [_finite(value) for value in values[-width:]]
    finite = [value for value in shown if value is not None]
    bottom = _finite(low)
    top = _finite(high)
    if bottom is None:
        bottom = min(finite, default=0.0)
    if top is None:
        top = max(finite, default=0.0)
    # Halves, because the difference of two large floats can be infinite.
    span = top / 2 - bottom / 2
    last = len(blocks) - 1
    line = ""
    for value in shown:
        if value is None:
            line += odd
        elif span <= 0:
            line += blocks[last // 2]
        else:
            line += blocks[round(min(1.0, max(0.0, (value / 2 - bottom / 2) / span)) * last)]
    return line.rjust(width)


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
