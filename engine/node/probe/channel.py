"""Frames from stdin and to stdout, and the port that other nodes try."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from typing import Any, Dict

from engine.node.networks import answer, open_listener

SYNC = b"\0RANKDECK-PROBE 1\n"  # printed once before the first answer; output of login shells before it is skipped
EXIT_CUT_OFF = 98

MAX_FRAME = 1 << 20


class Listener:
    """The port that other nodes try, and the token that it sends to them."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.token = b""

    def open(self, token: str) -> int:
        """Listens on every address of this node. Returns the port, which the kernel chooses."""
        self.socket, self.token = open_listener(), token.encode()
        return int(self.socket.getsockname()[1])


LISTENER = Listener()


def wait(descriptors: list[int], deadline: float | None = None) -> list[int]:
    """Returns the descriptors that can be read; none if the deadline passes. Answers connections meanwhile."""
    while True:
        listener: list[Any] = [LISTENER.socket] if LISTENER.socket else []
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return []
        ready = select.select([*descriptors, *listener], [], [], left)[0]
        if listener and listener[0] in ready:
            answer(listener[0], LISTENER.token)
        found = [one for one in descriptors if one in ready]
        if found:
            return found


def read_exactly(size: int) -> bytes:
    """Reads this number of bytes from stdin. Exits if stdin ends."""
    data = b""
    while len(data) < size:
        wait([0])
        more = os.read(0, size - len(data))
        if not more:
            sys.exit(0 if not data else EXIT_CUT_OFF)
        data += more
    return data


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def read_question() -> Dict[str, Any]:  # noqa: UP006
    (size,) = struct.unpack(">I", read_exactly(4))
    question: Dict[str, Any] = json.loads(read_exactly(min(size, MAX_FRAME)))  # noqa: UP006
    return question


def write_answer(answer: Dict[str, Any]) -> None:  # noqa: UP006
    body = json.dumps(answer).encode()
    write(struct.pack(">I", len(body)) + body)
