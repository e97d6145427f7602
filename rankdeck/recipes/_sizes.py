"""Sizes of messages as people write them, `4:400M`, and sizes and times as they read them."""

import math

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_sizes(words: str) -> list[int]:
    """The sizes that some words stand for. `words`: `4:400M` doubles from 4 bytes to 400 MiB, which is the last whether or not doubling
    meets it; `4:400M:x8` multiplies by 8; `4,1K,2G` are these. K, M and G are powers of 1024. Returns bytes, rising, each once. Raises
    ValueError, which says the problem."""
    first, *more = words.split(":")
    if not more:
        return sorted({_bytes_of(word) for word in words.split(",")})
    low, high = _bytes_of(first), _bytes_of(more[0])
    factor = int(more[1].removeprefix("x")) if len(more) > 1 else 2
    if low > high:
        raise ValueError(f"{first} is more than {more[0]}: the smaller size comes first")
    if factor < 2:
        raise ValueError(f"x{factor} never gets from {first} to {more[0]}: x2 or more is needed")
    found = [low * factor**power for power in range(math.floor(math.log(high / low, factor)) + 2)]
    return [*(size for size in found if size < high), high]


def _bytes_of(word: str) -> int:
    unit = _UNITS.get(word[-1:].upper(), 1)
    size = int(word.rstrip("KMGkmg")) * unit
    if size < 1:
        raise ValueError(f"{word} is no size: 1 byte or more is needed")
    return size


def size_text(size: int) -> str:
    """Bytes in at most eight cells: `512 B`, `64 KiB`, `1.5 MiB`, `400 MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:.0f} {name}"
    return f"{size} B"


def time_text(microseconds: float) -> str:
    """A time in three digits and at most seven cells: `8.12 us`, `612 us`, `1.23 ms`, `45.1 s`."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= 0.9995 * unit:
            return f"{_three_digits(microseconds / unit)} {name}"
    return f"{_three_digits(microseconds)} us"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
