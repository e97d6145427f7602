"""Output of ranks: the sizes of their files or, for a supervisor on another machine, their content."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from engine.node.agent.files import last_bytes, note_writes
from engine.node.agent.state import NodeState, Rank
from engine.node.agent.wire import Any, Message

CHUNK = 1 << 16  # bytes of a rank's file in one frame
GROWTH_PERIOD = 10.0  # seconds between two looks at files of which no write was noted
RELAY_AHEAD = 1 << 18  # Bytes sent before the supervisor confirms them. On a slow link, other messages wait for them.

LAST_ERRORS, LAST_NUMBERS = 16 * 1024, 4096
"""Bytes from the end of a failed rank's standard error and metrics in the message of its end."""


class Relay:
    """Reports the output of ranks. `is_up`: whether a supervisor is connected."""

    def __init__(self, state: NodeState, send: Callable[..., None], is_up: Callable[[], bool]) -> None:
        self._state, self.send, self._is_up = state, send, is_up
        self._is_behind = False
        self._turn = 0
        self._under_way = 0
        """Bytes that were sent and are not confirmed."""
        self._waiting: list[Message] = []
        """Messages that must arrive after the ranks' output."""
        self._notes, self._due = -1, 0.0
        self._noted: tuple[int, list[int]] = (-1, [])
        """The attempt and the files whose writes `_notes` tells."""

    def start_relay(self, message: Message) -> None:
        """`relay`: sends the ranks' output from now on, from the offsets that the supervisor has reached."""
        self._state.relays = self._is_behind = True
        self._under_way = 0
        for number, *offsets in message["offsets"]:
            if message["attempt"] == self._state.attempt and number in self._state.ranks:
                self._state.ranks[number].sent = offsets
        self.go_on()

    def stored(self, message: Message) -> None:
        """`stored`: confirms bytes."""
        self._under_way = max(0, self._under_way - message["size"])
        self.go_on()

    def stop(self) -> None:
        """Stops, because the supervisor's connection is closed. The next one sends offsets again."""
        self._waiting.clear()
        self._state.relays = self._is_behind = False

    @property
    def can_send_more(self) -> bool:
        """Whether there is output to be sent, and it may be sent now."""
        return self._is_behind and self._under_way < RELAY_AHEAD

    def go_on(self, last_of: Rank | None = None) -> None:
        """Sends output of ranks: first metrics, which are few; then the ranks in turn, however much one of them writes. `last_of`: a rank
        that has just ended, whose output is sent first."""
        limit = RELAY_AHEAD * (2 if last_of else 1)
        ranks = [last_of] if last_of else list(self._state.ranks.values())
        self._turn += 1
        turn = self._turn % max(1, len(ranks))
        ranks = ranks[turn:] + ranks[:turn]
        orders = {rank.number: in_order(rank) for rank in ranks}
        self._is_behind = moved = True
        while moved and self._under_way < limit:
            moved = False
            for place in range(3):
                for rank in ranks:
                    if place < len(rank.watched) and self._under_way < limit:
                        moved = self._send_chunk(rank, orders[rank.number][place]) or moved
        if not last_of and not moved:
            self._is_behind = False
            waiting, self._waiting = self._waiting, []
            for message in waiting:
                self.send(**message)

    def _send_chunk(self, rank: Rank, stream: int) -> bool:
        if not self._is_up():
            return False
        offset = rank.sent[stream]
        data = os.pread(rank.watched[stream], CHUNK, offset)
        if data:
            attempt = self._state.attempt
            self.send(type="data", attempt=attempt, rank=rank.number, stream=stream, offset=offset, data=data)
            rank.sent[stream] += len(data)
            self._under_way += len(data)
        return bool(data)

    def send_after_output(self, **message: Any) -> None:
        """Sends a message after all output that ranks have written so far."""
        if not self._state.relays:
            self.send(**message)
            return
        self._waiting.append(message)
        self.go_on()

    def rank_ended(self, rank: Rank) -> Message:
        """Sends the last output of a rank. Returns fields for the message of its end."""
        if self._state.relays:
            self.go_on(rank)
            return self.last_words(rank)
        self.report_growth()
        return {}

    def last_words(self, rank: Rank) -> Message:
        """Returns the ends of a failed rank's files, which explain its end before the supervisor has all of them."""
        if not rank.status:
            return {}
        return {
            name: last_bytes(rank.watched[stream], size).decode("utf-8", "replace")
            for name, stream, size in (("errors", 1, LAST_ERRORS), ("numbers", 2, LAST_NUMBERS))
            if stream < len(rank.watched)
        }

    def look_for_growth(self) -> None:
        """Reports growth if files were written. Looks at them every GROWTH_PERIOD even so: writes to mapped memory are not noted."""
        watched = [descriptor for rank in self._state.ranks.values() for descriptor in rank.watched]
        if self._noted != (self._state.attempt, watched):
            if self._notes >= 0:
                os.close(self._notes)
            self._notes, self._noted = note_writes(watched), (self._state.attempt, watched)
            self._due = 0.0
        try:
            if self._notes >= 0:
                os.read(self._notes, 1 << 16)
        except BlockingIOError:
            if time.monotonic() < self._due:
                return
        self._due = time.monotonic() + GROWTH_PERIOD
        self.report_growth()

    def report_growth(self) -> None:
        """Sends the changed sizes of the ranks' files, or their new content."""
        if self._state.relays:
            self.go_on()
            return
        grown = []
        for rank in self._state.ranks.values():
            sizes = [os.fstat(descriptor).st_size for descriptor in rank.watched]
            if len(sizes) == len(rank.sizes) and sizes != rank.sizes:
                rank.sizes = sizes
                grown.append([rank.number, *sizes])
        if grown:
            self.send(type="grew", attempt=self._state.attempt, sizes=grown)


def in_order(rank: Rank) -> tuple[int, ...]:
    """Returns in which order the files of a rank are sent: metrics, then the stream that was written less recently. So lines arrive in
    about the order in which they were written, and a flood on one stream does not hold the other up."""
    if len(rank.watched) < 3:
        return tuple(range(len(rank.watched)))
    out, err = (os.fstat(descriptor).st_mtime_ns for descriptor in rank.watched[:2])
    return (2, 1, 0) if err < out else (2, 0, 1)
