"""How tests of single widgets wait: for conditions with a deadline, never for time to pass."""

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot
from textual.widget import Widget

from tests.support import PATIENCE

SIZES = [(1, 1), (2, 3), (60, 15), (80, 24), (120, 40), (200, 60)]
"""(columns, lines) of terminals in which nothing may raise."""


async def until(
    pilot: Pilot[Any], condition: Callable[[], bool], what: str, each: Callable[[], object] = lambda: None
) -> None:
    """Waits until something is so. `each`: what is done before every look."""
    end = time.monotonic() + PATIENCE
    each()
    while not condition():
        assert time.monotonic() < end, f"{what} did not come to be"
        await pilot.pause(0.005)
        each()


def lines(widget: Widget) -> list[str]:
    """What a widget shows, as text."""
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]
