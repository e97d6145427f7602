"""GPU use of ranks, reported by a process of `gpus.py`, because a query may hang in a broken driver."""

from __future__ import annotations

import json
import selectors
import socket
import time

from engine.linux.processes import start_process
from engine.node.agent.jobs import environment_of
from engine.node.agent.state import NodeState
from engine.node.agent.wire import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GPU_SILENCE = 6.0
"""Seconds without a sample, which `gpus.py` sends every two seconds, after which GPU use is unknown."""


class GpuWatch:
    """Starts the process once in an attempt. It ends when its socket is closed, at the latest when the attempt is cleared."""

    def __init__(self, state: NodeState, selector: selectors.BaseSelector, send: Callable[..., None]) -> None:
        self._state, self._selector, self.send = state, selector, send
        self._wire: socket.socket | None = None
        self._pid = 0
        self._ranks: list[int] = []
        """The ranks of its samples, in their order."""
        self._heard = 0.0

    def watch_gpus(self, message: Message) -> None:
        """`watch_gpus`: starts it."""
        attempt = self._state.attempt
        if message["attempt"] != attempt or attempt <= self._state.cleared or self._wire is not None:
            return
        environment = environment_of(message, self._state.mark)
        wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [*message["argv"], str(theirs.fileno())]
            self._pid = start_process(argv, env=environment, pass_fds=[theirs.fileno()])
        wire.setblocking(False)
        self._wire, self._ranks, self._heard = wire, message["ranks"], time.monotonic()
        self._state.helpers.add(self._pid)
        self._selector.register(wire, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        if self._wire is None:
            return
        try:
            data = self._wire.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard = time.monotonic()
            self._tell(json.loads(data))
        else:
            self._tell(None)
            self.end()

    def notice_silence(self) -> None:
        """Reports unknown values if a driver hangs; otherwise the supervisor would keep showing the last ones."""
        if self._wire is not None and time.monotonic() - self._heard > GPU_SILENCE:
            self._heard = time.monotonic()
            self._tell(None)

    def _tell(self, uses: list[list[Any]] | None) -> None:
        unknown = [None, None, None]
        ranks = [[rank, *(uses[index] if uses else unknown)] for index, rank in enumerate(self._ranks)]
        self.send(type="gpus", attempt=self._state.attempt, ranks=ranks)

    def end(self) -> None:
        """Closes its socket, which ends it."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._selector.unregister(wire)
            wire.close()
            self._state.helpers.discard(self._pid)
