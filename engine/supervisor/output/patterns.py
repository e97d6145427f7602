"""Searches with the patterns of a profile, which may be a stranger's: one that takes too long is not used any more.

A pattern with exponential backtracking would stop the event loop for ever. Python's regex engine runs signal handlers while it matches, so
a timer on the processor time of this process can end a search.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from engine.core.metrics.metric_lines import Hit, own_hits

PATTERN_TIME = 0.5
"""Seconds of processor time for one search in a piece of output, at most some 300 kB. A usual pattern takes a few milliseconds."""


class _TooSlowError(Exception):
    """A search takes too long."""


class OwnPatterns:
    """The patterns of a run. Only the main thread may search.

    Args:
        on_slow: called with a pattern that is not used any more.
    """

    def __init__(self, on_slow: Callable[[str], None]) -> None:
        self._on_slow = on_slow
        self._slow: set[bytes] = set()
        self._searching = False

    def find(self, pattern: re.Pattern[bytes], text: bytes) -> list[Hit]:
        """Every value of a pattern in whole lines; none if it takes, or once took, too long."""
        if pattern.pattern in self._slow:
            return []
        try:
            return self._search(pattern, text)
        except _TooSlowError:
            self._slow.add(pattern.pattern)
            self._on_slow(pattern.pattern.decode())
            return []

    def _search(self, pattern: re.Pattern[bytes], text: bytes) -> list[Hit]:
        signal.signal(signal.SIGVTALRM, self._end_search)
        self._searching = True
        signal.setitimer(signal.ITIMER_VIRTUAL, PATTERN_TIME)
        try:
            return list(own_hits(pattern, text))
        finally:
            self._searching = False  # a signal that is late does nothing
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _end_search(self, number: int, frame: object) -> None:
        if self._searching:
            raise _TooSlowError
