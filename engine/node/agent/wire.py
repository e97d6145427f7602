"""Messages between supervisor and agent: 4 bytes of length, JSON, and for some messages raw bytes after a line feed."""

from __future__ import annotations

import json
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would delay each boot by milliseconds
    from typing import Any as Any

    Message = dict[str, Any]
else:
    Any, Message = object, dict

PROTOCOL = 2
SYNC = f"\0RANKDECK-AGENT {PROTOCOL}\n".encode()
"""Printed once before the first frame. The supervisor skips output of login shells before it."""

MAX_FRAME = 16 * 1024 * 1024  # bytes of the longest frame, without its length
MISSED_BEATS = 3  # heartbeats without an answer after which a link is dead
EXIT_CUT_OFF, EXIT_FAILED = 98, 99
EXIT_LINK_LOST = 96  # of a bridge whose agent still runs or was killed; 0 if the agent has ended on purpose


def encode_frame(message: Message, data: bytes = b"") -> bytes:
    """Returns one message as bytes. `message`: values that JSON supports. `data`: raw bytes, which arrive as `message["data"]`. Raises
    ValueError: both together have more than MAX_FRAME bytes."""
    body = json.dumps(message, separators=(",", ":")).encode() + (b"\n" + data if data else b"")
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME}")
    return struct.pack(">I", len(body)) + body


class FrameBuffer:
    """Turns received bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Adds bytes. Returns the messages that are now complete; raises ValueError for an invalid frame."""
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
                    raise ValueError("raw bytes follow something that is not a message")
                message["data"] = data
            messages.append(message)
        return messages


def read_exactly(descriptor: int, size: int) -> bytes:
    """Reads this number of bytes from a pipe. Exits this process if the pipe is closed."""
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            sys.exit(EXIT_CUT_OFF)
        data += more
    return data
