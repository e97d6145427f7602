"""A summary of repeated calls of a collective: the median, the slow ones, and two bandwidths."""

import math
import statistics
from typing import NamedTuple

from rankdeck.recipes._collectives import COLLECTIVES
from rankdeck.recipes._sizes import size_text, time_text

PERCENTILE = 0.95

HEADING = f"{'size':>8}{'calls':>7}{'median':>10}{'p95':>10}{'algbw':>10}{'busbw':>10} GB/s"
"""Above lines of `Timing.line`."""


class Timing(NamedTuple):
    """One collective on one size, in bytes: times in microseconds, bandwidths in 10^9 bytes per second."""

    collective: str
    size: int
    repetitions: int
    median: float
    p95: float
    algbw: float
    busbw: float

    def record(self, dtype: str) -> dict[str, object]:
        """For `rankdeck.log`. A barrier has no bandwidth."""
        times = {"repetitions": self.repetitions, "median_us": self.median, "p95_us": self.p95}
        bandwidths = {"algbw": self.algbw, "busbw": self.busbw} if self.size else {}
        return {"collective": self.collective, "dtype": dtype, "bytes": self.size, **times, **bandwidths}

    def line(self) -> str:
        bandwidths = f"{self.algbw:10.3f}{self.busbw:10.3f}" if self.size else ""
        shown = size_text(self.size) if self.size else "-"
        return f"{shown:>8}{self.repetitions:7}{time_text(self.median):>10}{time_text(self.p95):>10}{bandwidths}"


def percentile(times: list[float], part: float) -> float:
    """The smallest of the values that this share of them does not exceed (nearest rank)."""
    return sorted(times)[max(0, math.ceil(part * len(times)) - 1)]


def summarize(name: str, size: int, world: int, times: list[float]) -> Timing:
    """Summarizes times in seconds, by repetition, of the slowest rank; `size` in bytes."""
    median = statistics.median(times)
    algbw = size / max(median, 1e-9) / 1e9
    busbw = algbw * COLLECTIVES[name].bus_factor(world)
    return Timing(name, size, len(times), median * 1e6, percentile(times, PERCENTILE) * 1e6, algbw, busbw)
