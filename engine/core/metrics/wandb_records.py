"""Reads what a program logs to Weights & Biases from the file of the run, `run-ID.wandb`, which offline runs have too.

After 7 bytes of its own the file is a log in LevelDB's format (https://github.com/google/leveldb/blob/main/doc/log_format.md): blocks of
32 KiB, which hold chunks with checksum (4 bytes), length (2, little endian) and kind (1): a whole record, or its first, a middle or its
last part. Each record is a protobuf message `Record`, of which `history` (field 2) is read: its `item`s (1) with `key` (1) or
`nested_key` (2) and `value_json` (16). Checksums are not verified: a length that can't be true ends the reading.
"""

import contextlib
import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

from engine.core.metrics.event_records import MAX_TAG, Scalar, fields

MAGIC = b":W&B"
_BEGIN = 7  # bytes before the first chunk: `MAGIC` and the version of the format

BLOCK, _HEAD = 1 << 15, 7
"""Bytes of a block, and of the head of a chunk. A block ends with zeros where no head has room."""

_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

MAX_NUMBER = 64  # characters of the longest number that is read


class Records(NamedTuple):
    """Records of a part of the file. `end`: where the next one begins; `reach`: the end of the last chunk that is there."""

    messages: list[bytes]
    end: int
    reach: int


def whole_records(data: bytes, offset: int) -> Records:
    """Puts records together. `data`: from `offset` of the file. `offset`: 0, or the end of a chunk. Parts of a record that began before
    it are left out. Raises ValueError: it is no such file."""
    if not offset and not data.startswith(MAGIC[: len(data)]):
        raise ValueError("it does not begin as a file of Weights & Biases")
    if offset + len(data) < _BEGIN:
        return Records([], offset, offset)
    at = end = offset or _BEGIN
    messages: list[bytes] = []
    parts: list[bytes] | None = None
    while True:
        room = BLOCK - at % BLOCK
        if room < _HEAD:
            at += room
            continue
        if at + _HEAD > offset + len(data):
            return Records(messages, end, min(at, offset + len(data)))
        _, length, kind = struct.unpack_from("<IHB", data, at - offset)
        if not _WHOLE <= kind <= _LAST or _HEAD + length > room:
            raise ValueError(f"a part of {length} bytes of the kind {kind}, at {at}")
        begin = at + _HEAD - offset
        if begin + length > len(data):
            return Records(messages, end, at)
        at += _HEAD + length
        if kind in (_WHOLE, _FIRST):
            parts = []
        if parts is not None:
            parts.append(data[begin : begin + length])
        if kind in (_WHOLE, _LAST):
            messages += [] if parts is None else [b"".join(parts)]
            parts = None
        if parts is None:
            end = at


def scalars(messages: list[bytes]) -> Iterator[Scalar]:
    """The numbers that the program has logged, in order. Records that are damaged, or hold something else, are skipped."""
    for message in messages:
        with contextlib.suppress(ValueError, IndexError, OverflowError, RecursionError):
            for field, value in fields(message):
                if field == 2 and isinstance(value, bytes):
                    yield from _history(value)


def _history(message: bytes) -> list[Scalar]:
    """The numbers of one call of `log`. Its names that begin with `_` are wandb's own, among them the step and the time."""
    numbers = dict(_item(value) for field, value in fields(message) if field == 1 and isinstance(value, bytes))
    at, step = numbers.get("_timestamp"), numbers.get("_step")
    return [
        Scalar(at or 0.0, int(step or 0), name, number)
        for name, number in numbers.items()
        if number is not None and name[:1] not in ("", "_") and len(name.encode()) <= MAX_TAG
    ]


def _item(message: bytes) -> tuple[str, float | None]:
    names, number = [], None
    for field, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if field in (1, 2):
            names.append(value.decode())
        elif field == 16 and len(value) <= MAX_NUMBER:
            found = json.loads(value)
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            number = float(found) if is_number else None
    return ".".join(names), number
