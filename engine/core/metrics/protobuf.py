"""Reads the fields of protobuf messages, without the library: the supervisor needs few fields."""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Splits a protobuf message, whose format https://protobuf.dev/programming-guides/encoding describes. Yields the number of each
    field, and a whole number or the bytes of anything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(message):
            raise ValueError("a field that is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")
