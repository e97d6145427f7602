"""What supervisor and agent send each other: 4 bytes of length, JSON, and raw bytes after a line feed where a message has any."""

from __future__ import annotations

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` takes milliseconds of each boot
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

PROTOCOL = 2
SYNC = f"\0RANKDECK-AGENT {PROTOCOL}\n".encode()
"""Printed once before the first frame. The supervisor skips what a login shell prints before it."""

MAX_FRAME = 16 * 1024 * 1024
"""Bytes of the longest frame, without its length."""

MISSED_BEATS = 3
"""Heartbeats that may fail to come before a link counts as dead."""

EXIT_CUT_OFF, EXIT_FAILED = 98, 99
EXIT_LINK_LOST = 96
"""Of a bridge whose agent still runs or was killed. A bridge whose agent has ended on purpose exits with 0."""


def encode_frame(message: Message, data: bytes = b"") -> bytes:
    """One message as bytes.

    Args:
        message: what JSON can express.
        data: raw bytes, which arrive as `message["data"]`.

    Raises:
        ValueError: both together have more than MAX_FRAME bytes.
    """
    body = json.dumps(message, separators=(",", ":")).encode() + (b"\n" + data if data else b"")
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME}")
    return struct.pack(">I", len(body)) + body


class FrameBuffer:
    """Takes bytes in as they come and gives whole messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Adds bytes. Returns the messages that are complete now; raises ValueError for what can't be a frame."""
        self._data += data
        messages: list[Any] = []
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">I", self._data)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is larger than {MAX_FRAME}")
            if len(self._data) < 4 + size:
                break
            text, line_feed, data = bytes(self._data[4 : 4 + size]).partition(b"\n")
            del self._data[: 4 + size]
            message = json.loads(text)
            if line_feed:
                if not isinstance(message, dict):
                    raise ValueError("raw bytes come with something that is not a message")
                message["data"] = data
            messages.append(message)
        return messages


def read_exactly(descriptor: int, size: int) -> bytes:
    """So many bytes of a pipe. Ends this process where the pipe is closed before."""
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            sys.exit(EXIT_CUT_OFF)
        data += more
    return data
