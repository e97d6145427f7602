"""Results of measured collectives, as rank 0 reports them, and tables that compare runs. A result is one call of `rankdeck.log` with the
fields of `Result`; `docs/bench.md` explains them."""

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine.core.numbers import size_words, three_digits

RECIPE = "allreduce"  # the built-in script that reports results
LONGEST_LINE = 4096  # bytes of the longest line with a result; a rank may write anything to the file
MAX_RESULTS = 2000  # results of one run that are read: seven collectives with forty sizes are 280


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One collective with one size. Times of the slowest rank, in microseconds; bandwidths in 10^9 bytes per second, None if no data
    is moved."""

    collective: str
    dtype: str
    bytes: int
    repetitions: int
    median_us: float
    p95_us: float
    algbw: float | None = None
    busbw: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Results of two runs with the same key are compared."""
        return self.collective, self.dtype, self.bytes

    @property
    def is_sound(self) -> bool:
        """Whether its numbers can be shown and compared."""
        rates = [rate for rate in (self.algbw, self.busbw) if rate is not None]
        names = self.collective + self.dtype
        return (
            all(math.isfinite(number) and number >= 0 for number in (self.median_us, self.p95_us, *rates))
            and 0 < self.median_us <= self.p95_us < 1e12
            and all(rate < 1e9 for rate in rates)
            and 0 < self.repetitions < 1 << 40
            and 0 <= self.bytes < 1 << 50
            and names.isascii()
            and names.isprintable()
            and len(names) <= 40
        )


_decoder = msgspec.json.Decoder(Result)


def parse_results(data: bytes) -> list[Result]:
    """The results in a rank's metrics (lines of JSON; others are skipped), in order; of two with the same key the later."""
    found: dict[tuple[str, str, int], Result] = {}
    for line in data.split(b"\n")[:-1]:
        if b'"collective"' not in line or len(line) > LONGEST_LINE:
            continue
        try:
            result = _decoder.decode(line)
        except msgspec.MsgspecError:
            continue
        if result.is_sound and (len(found) < MAX_RESULTS or result.key in found):
            found[result.key] = result
    return list(found.values())


# --- words -----------------------------------------------------------------------------------------------------------------


def moved_words(size: int) -> str:
    """Bytes that a collective moves, in at most eight cells; `-` if it moves none."""
    return size_words(size) if size else "-"


def time_words(microseconds: float) -> str:
    """A time with three digits, in at most seven cells: `8.12 us`, `612 us`, `45.1 ms`, `1.23 s`."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= 0.9995 * unit:
            return f"{three_digits(microseconds / unit)} {name}"
    return f"{three_digits(microseconds)} us"


def rate_words(rate: float | None) -> str:
    """A bandwidth in 10^9 bytes per second, in at most seven cells; `-` if no data is moved."""
    return "-" if rate is None else f"{rate:.3f}" if rate < 99.95 else f"{rate:.1f}" if rate < 9999.5 else f"{rate:.0e}"


# --- side by side ------------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A backend or a run, and its results."""

    title: str
    results: Sequence[Result]


def differs(one: Result, other: Result) -> bool:
    """Whether the slower median is above the 95th percentile of the faster result; otherwise the difference may be noise."""
    faster, slower = sorted((one, other), key=lambda result: result.median_us)
    return slower.median_us > faster.p95_us


_SIZE, _FIRST, _OTHER = 8, 28, 38
"""Width in cells of the sizes, the first column, and each further column, which has a ratio."""

LEGEND = (
    "median and p95 are of the slowest rank, GB/s is bus bandwidth; * the lowest median; x: times as fast as {}; "
    "~ within the noise"
)


def comparison(columns: Sequence[Column], width: int) -> list[str]:
    """Lines of tables with all sizes of all columns, one table for each collective and type. `columns`: the others are compared with the
    first. `width`: cells of a line; columns that do not fit beside the first get further tables."""
    fitting = max(1, (width - _SIZE - _FIRST) // _OTHER)
    places = range(len(columns))
    groups = [(0, *places[begin : begin + fitting]) for begin in range(1, len(columns), fitting)] or [(0,)]
    by_key = [{result.key: result for result in column.results} for column in columns]
    lines: list[str] = []
    for kind in dict.fromkeys(result.key[:2] for column in columns for result in column.results):
        sizes = sorted({result.bytes for column in columns for result in column.results if result.key[:2] == kind})
        for group in groups:
            lines += ["", ", ".join(kind), *_head([columns[place] for place in group])]
            for size in sizes:
                row = [found.get((*kind, size)) for found in by_key]
                medians = [result.median_us for result in row if result]
                lines.append(_row(size, [row[place] for place in group], min(medians) if len(medians) > 1 else 0.0))
    if lines and len(columns) > 1:
        lines += ["", *textwrap.wrap(LEGEND.format(columns[0].title), width)]
    return lines[1:]


def _head(columns: Sequence[Column]) -> list[str]:
    titles, words = " " * _SIZE, f"{'size':>{_SIZE}}"
    for index, column in enumerate(columns):
        width = _OTHER if index else _FIRST
        titles += f"{column.title if len(column.title) <= width - 4 else column.title[: width - 7] + '...':^{width}}"
        words += f"{'median':>9} {'p95':>9}{'GB/s':>9}" + (f"{'x':>8}  " if index else "")
    return [titles.rstrip(), words.rstrip()]


def _row(size: int, results: Sequence[Result | None], best: float) -> str:
    first = results[0]
    line = f"{moved_words(size):>{_SIZE}}"
    for index, result in enumerate(results):
        if result is None:
            line += " " * (_OTHER if index else _FIRST)
            continue
        star = "*" if result.median_us == best else " "
        line += f"{time_words(result.median_us):>9}{star}{time_words(result.p95_us):>9}{rate_words(result.busbw):>9}"
        if index:
            ratio = _ratio(first, result)
            line += f"{ratio:>8}{'~' if first and not differs(first, result) else ' '} "
    return line.rstrip()


def _ratio(first: Result | None, result: Result) -> str:
    if first is None:
        return "-"
    times = first.median_us / result.median_us
    return f"{times:.2f}" if times < 99.95 else f"{times:.0f}" if times < 1e6 else f"{times:.0e}"
