"""The pace of a run, from which its end is estimated."""

from __future__ import annotations

from collections import deque

from engine.core.views.view import RunView

PACE_STEPS = 64  # newest steps for the estimate of the end: enough to be steady, few enough for a slowdown


class Pace:
    """When the newest steps of an attempt were reached."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS)

    def clear(self) -> None:
        """Forgets the steps: another attempt or generation begins."""
        self._steps.clear()

    def note(self, at: float, step: int) -> None:
        """Remembers when the first rank reached a step; the other ranks' reports of it are ignored."""
        if not self._steps or step > self._steps[-1][1]:
            self._steps.append((at, step))

    def seconds_left(self, run: RunView) -> float | None:
        """Seconds to the last step at the pace of the newest steps; None if the pace is unknown or the run is not training."""
        is_training = run.state == "running" and run.stall is None
        if not is_training or run.steps is None or run.step is None or len(self._steps) < 2:
            return None
        (begin, first), (end, last) = self._steps[0], self._steps[-1]
        if end <= begin:
            return None
        return max(0, run.steps - run.step) * (end - begin) / (last - first)
