"""Reads scalars from TensorBoard's event files.

A file is a row of records: length (8 bytes, little endian), its checksum (4), that many bytes, their checksum (4). Each record is a
protobuf message `Event`, of which only what scalars need is read: `wall_time` (field 1), `step` (2) and the `tag` (1), `simple_value` (2)
or `tensor` (8) of each value in `summary` (5). Checksums are not verified: a length that can't be true ends the reading.
"""

import contextlib
import struct
from collections.abc import Iterator
from typing import NamedTuple


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


HEAD, FOOT = 12, 4  # bytes before and behind a record
MAX_RECORD = 1 << 26  # Bytes of the largest plausible record, such as an image. Larger ones are skipped.
MAX_TAG = 64  # bytes of the longest tag that becomes a metric
_FLOAT, _DOUBLE = 1, 2  # types of tensors


class Scalar(NamedTuple):
    """One value. `at`: the program's time, in seconds since the epoch; `step`: the program's step."""

    at: float
    step: int
    tag: str
    value: float


def complete_size(data: bytes) -> tuple[int, int]:
    """The size of the whole records at the beginning of some data. `data`: bytes that begin with a record. Returns the bytes of the whole
    records, and the bytes of the record behind them; 0: its length is not there yet. Raises ValueError: it is no file of events."""
    at = 0
    while at + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD:
            raise ValueError(f"a record of {length} bytes")
        if at + HEAD + length + FOOT > len(data):
            return at, HEAD + length + FOOT
        at += HEAD + length + FOOT
    return at, 0


def scalars(data: bytes) -> Iterator[Scalar]:
    """The scalars of whole records, in order. Records that are damaged, or hold something else, are skipped."""
    at = 0
    while at + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        with contextlib.suppress(ValueError, struct.error, IndexError):
            yield from _event(data[at + HEAD : at + HEAD + length])
        at += HEAD + length + FOOT


def _event(message: bytes) -> list[Scalar]:
    at, step, summary = 0.0, 0, b""
    for field, value in fields(message):
        if field == 1 and isinstance(value, bytes):
            (at,) = struct.unpack("<d", value)
        elif field == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif field == 5 and isinstance(value, bytes):
            summary = value
    found = []
    for field, value in fields(summary):
        if field == 1 and isinstance(value, bytes) and (one := _value(value)) is not None:
            found.append(Scalar(at, step, *one))
    return found


def _value(message: bytes) -> tuple[str, float] | None:
    tag, number = b"", None
    for field, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value
        elif field == 2:
            (number,) = struct.unpack("<f", value)
        elif field == 8:
            number = _tensor(value)
    return (tag.decode(), number) if number is not None and 0 < len(tag) <= MAX_TAG else None


def _tensor(message: bytes) -> float | None:
    """The value of a tensor with one number, as newer writers store scalars."""
    kind, content = 0, b""
    for field, value in fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            content = value
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    if form is None or len(content) != struct.calcsize(form):
        return None
    (number,) = struct.unpack(form, content)
    return float(number)
