"""A series of numbers in one line of text: one value per cell, the newest on the right. Textual's own `Sparkline` raises ValueError on
NaN and infinity (8.2.8), stretches a short series over its width and draws a constant one as empty; a diverged loss must neither end the
app nor look like a good one."""

import math
from collections.abc import Sequence

from tui.text.marks import signs


def sparkline(
    values: Sequence[float | None], width: int, *, ascii: bool = False, scale: tuple[float, float] | None = None
) -> str:
    """Draws the newest values, each in one cell.

    Args:
        values: oldest first. None and values that are not finite are marked instead of drawn.
        width: cells. A shorter series leaves its left empty.
        scale: the values of the lowest and the highest block; None: the extremes of the shown values.

    Returns:
        Exactly `width` characters of one cell each. A series that does not change is a line at half height.
    """
    if width <= 0:
        return ""
    drawn = signs(ascii=ascii)
    shown = [_finite(value) for value in values[-width:]]
    finite = [value for value in shown if value is not None]
    low, high = scale or (min(finite, default=0.0), max(finite, default=0.0))
    # Halves, because the difference of two large floats can be infinite.
    span = high / 2 - low / 2
    last = len(drawn.blocks) - 1
    cells: list[str] = []
    for value in shown:  # a table draws thousands of cells a second
        if value is None:
            cells.append(drawn.odd)
            continue
        place = round((value / 2 - low / 2) / span * last) if span > 0 else last // 2
        cells.append(drawn.blocks[0 if place < 0 else last if place > last else place])
    return "".join(cells).rjust(width)


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
