"""The agent's socket and the supervisor's connection, which is closed if the supervisor is silent.

Processes of mpirun connect to the same socket. The first message of a connection tells which it is.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from engine.linux.processes import kill_quietly, process_status, start_time
from engine.linux.sockets import peer_of
from engine.node.agent.folders import listen, socket_path
from engine.node.agent.state import NodeState
from engine.node.agent.wire import MISSED_BEATS, Any, FrameBuffer, Message, encode_frame

MAX_PAUSE = 1.0  # seconds between two looks at the supervisor's silence, of which there are twenty a second


class PendingConnection:
    """A connection whose first message has not arrived."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        self.incoming = FrameBuffer()
        self.descriptors: list[int] = []

    def read(self) -> list[Any]:
        """Returns complete messages. Raises OSError if the connection is closed."""
        room = array.array("i")
        data, extra, _, _ = self.wire.recvmsg(1 << 20, socket.CMSG_SPACE(8 * room.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                room.frombytes(content[: len(content) - len(content) % room.itemsize])
        self.descriptors += room
        if not data:
            raise ConnectionResetError
        return self.incoming.feed(data)

    def close(self) -> None:
        """Closes it, with the descriptors that it has received."""
        self.wire.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Link:
    """The agent's socket, and the connection of its supervisor.

    Args:
        on_message: called with each message of the supervisor.
        on_process: called with connections of processes of mpirun, and their first message.
        on_hang_up: called when the supervisor's connection is closed.
    """

    def __init__(
        self,
        state: NodeState,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        on_message: Callable[[Any], None],
        on_process: Callable[[PendingConnection, Message], None],
        on_hang_up: Callable[[], None],
    ) -> None:
        self._state, self._selector, self._listener = state, selector, listener
        self._on_message, self._on_process, self._on_hang_up = on_message, on_process, on_hang_up
        self._wire: socket.socket | None = None
        self._incoming, self._outgoing = FrameBuffer(), bytearray()
        self._heard = self._alone_since = self._looked = time.monotonic()

    @property
    def is_up(self) -> bool:
        """Whether a supervisor is connected."""
        return self._wire is not None

    @property
    def is_idle(self) -> bool:
        """Whether all messages have been sent."""
        return not self._outgoing

    @property
    def alone(self) -> float:
        """Seconds without a supervisor."""
        return time.monotonic() - self._alone_since

    def send(self, data: bytes = b"", **message: Any) -> None:
        """Queues a message for the supervisor. Without a connection it is dropped, because the inventory in `hello` replaces it."""
        if self._wire is not None:
            self._outgoing += encode_frame(message, data)

    # the listening socket

    def listen(self) -> None:
        self._accept_from(self._listener)

    def listen_anew(self) -> None:
        """Replaces the listening socket, if that is possible. Must be called before `listen`."""
        with contextlib.suppress(OSError, RuntimeError):
            old, self._listener = self._listener, listen(".", self._state.mark)
            self._accept_from(old)  # the warden keeps it open, so that a bridge may wait in its queue

    def _accept_from(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def keep_listening(self) -> None:
        """Listens again if the socket's path is gone, as happens when a user's last session ends."""
        with contextlib.suppress(OSError, RuntimeError):
            wanted = socket_path(self._state.mark)
            if wanted != self._listener.getsockname() or not os.path.exists(wanted):
                listener = listen(".", self._state.mark)
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = listener
                self.listen()

    def stop_listening(self) -> None:
        """Removes the socket's path, so that bridges know that this agent ends on purpose."""
        with contextlib.suppress(OSError):
            os.unlink(self._listener.getsockname())

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if peer_of(connection)[1] != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        pending = PendingConnection(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_first(pending))

    def _read_first(self, pending: PendingConnection) -> None:
        """Reads the first message, which tells whether this is a supervisor or a process of mpirun."""
        try:
            messages = pending.read()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._selector.unregister(pending.wire)
            pending.close()
            return
        if not messages:
            return
        self._selector.unregister(pending.wire)
        kind = messages[0].get("type") if isinstance(messages[0], dict) else None
        if kind in ("proxy", "launcher"):
            self._on_process(pending, messages[0])
            return
        pid, start = self._state.bridge
        if (process_status(pid) or ())[:2] == (start, "T"):  # a signal has stopped the bridge before this one
            kill_quietly(pid, signal.SIGKILL)
        self.hang_up()
        self._wire, self._incoming, self._outgoing = pending.wire, pending.incoming, bytearray()
        pid = peer_of(self._wire)[0]
        self._state.bridge, self._state.dirty, self._heard = (pid, start_time(pid)), True, time.monotonic()
        self._selector.register(self._wire, selectors.EVENT_READ, self._receive)
        for message in messages:
            self._on_message(message)

    # the supervisor

    def hang_up(self) -> None:
        """Closes the supervisor's connection, if there is one."""
        if self._wire is not None:
            self._selector.unregister(self._wire)
            self._wire.close()
            self._wire = None
            self._outgoing.clear()
            self._alone_since = time.monotonic()
            self._on_hang_up()

    def drop_if_silent(self) -> None:
        """Closes a connection that is cut. TCP, in which its bridge hangs, may take hours to notice. Looks often: a longer pause is one of this process, and
        no silence of the supervisor."""
        now = time.monotonic()
        if now - self._looked > MAX_PAUSE:
            self._heard = now
        self._looked = now
        beat = self._state.terms.get("heartbeat")
        if not beat or now - self._heard <= MISSED_BEATS * beat:
            return
        self.hang_up()
        self._alone_since = self._heard
        pid, start = self._state.bridge
        if start_time(pid) == start:
            kill_quietly(pid, signal.SIGKILL)

    def _receive(self) -> None:
        if self._wire is None:
            return
        try:
            data = self._wire.recv(1 << 20)
            messages = self._incoming.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        if not data:
            self.hang_up()
            return
        self._heard = time.monotonic()
        for message in messages:
            self._on_message(message)

    def flush(self) -> None:
        """Sends as much as the connection accepts."""
        if self._wire is None:
            return
        try:
            while self._outgoing:
                del self._outgoing[: self._wire.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.hang_up()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._selector.modify(self._wire, events, self._receive)
