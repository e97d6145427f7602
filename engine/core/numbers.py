"""Numbers, times and sizes as text, for commands, sentences and the app. Pure."""

import math
import time
from typing import Protocol


class HasUnits(Protocol):
    """How a user wants values written: see `engine.core.settings.Units`."""

    @property
    def memory(self) -> str:
        """`GiB`, powers of 1024, or `GB`, powers of 1000."""

    @property
    def time(self) -> str:
        """`local` or `UTC`."""


DAY_AND_TIME = "%Y-%m-%d %H:%M"
TIME = "%H:%M:%S"  # forms of `clock`

NOTHING = "–"  # noqa: RUF001  not a hyphen
"""Shown where there is no value."""


def number(value: float | None, width: int) -> str:
    """A measured value in three or four digits, right-aligned: `2571`, `41.2k`, `1.61`, `3.2e-07`, `nan`. `value`: None where there is
    none. `width`: cells; seven hold every value that is not negative. A value that does not fit is `###`, never a wrong digit."""
    if value is None:
        return NOTHING.rjust(width)[:width]
    for text in (_number(value), f"{value:.1e}", f"{value:.0e}"):
        if len(text) <= width:
            return text.rjust(width)
    return "#" * width


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(float(value))
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude < 0.000_999_5 or magnitude >= 999.5e12:
        return f"{value:.1e}"
    if magnitude < 0.9995:
        return f"{value:.{2 - math.floor(math.log10(magnitude))}f}"
    if magnitude < 9999.5:
        return three_digits(value) if magnitude < 999.5 else f"{value:.0f}"
    scale, letter = next((scale, letter) for scale, letter in _SCALES if magnitude < 999.5 * scale)
    return three_digits(value / scale) + letter


def precise(value: float | None) -> str:
    """A measured value in four digits: `1.612`, `0.008123`, `8.123e-05`, in at most nine cells unless it is negative or
    beyond 1e-100 or 1e100."""
    return NOTHING if value is None else f"{value:#.4g}".rstrip(".")


_SCALES = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))


def three_digits(value: float) -> str:
    """A value in three digits: `8.12`, `61.2`, `612`."""
    magnitude = abs(value)
    return f"{value:.{2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0}f}"


def duration(seconds: float | None) -> str:
    """How long something took or will take, in at most eight characters, below 1,000 days: `0.4 s`, `42 s`, `3:07`, `2:03:10`, `4 d 3 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s" if seconds >= 9.95 else f"{max(0.0, seconds):.1f} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    if whole < 86_400:
        return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 86_400} d {whole // 3600 % 24} h"


def age(seconds: float | None) -> str:
    """How long ago something was, at most six cells: `0.2 s`, `12 s`, `3 min`, `2 h`, `4 d`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{max(1, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds / 60)} min"
    if seconds < 86400:
        return f"{int(seconds / 3600)} h"
    return f"{int(seconds / 86400)} d"


def percent(value: int | None) -> str:
    """`97%`."""
    return NOTHING if value is None else f"{value}%"


def clock(at: float, form: str = f"{DAY_AND_TIME}:%S", units: HasUnits | None = None) -> str:
    """A time in seconds since the epoch as `strftime` writes it; UTC is named."""
    if units is None or units.time == "local":
        return time.strftime(form, time.localtime(at))
    return time.strftime(f"{form}Z", time.gmtime(at))


def memory(count: int | None, units: HasUnits | None = None) -> str:
    """A number of bytes in at most five cells: `512 M`, `1.2 G`, `61 G`."""
    if count is None:
        return NOTHING
    base = 1024 if units is None or units.memory == "GiB" else 1000
    amount, letters = count / base**2, iter("MGTP")
    letter = next(letters)
    while amount >= 999.5:
        amount, letter = amount / base, next(letters)
    return f"{amount:.{1 if amount < 9.95 else 0}f} {letter}"


def size_words(size: int) -> str:
    """Bytes in at most eight characters, below 1,000 TiB: `4 B`, `64 KiB`, `1.5 MiB`."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:.0f} {name}"
    return f"{size} B"
