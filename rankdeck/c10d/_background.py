"""The background thread of a backend: progress of transfers that nobody waits for, deadlines, and groups that are being destroyed."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from rankdeck._metrics import log

CHECK_INTERVAL = 0.25  # seconds between checks of deadlines
REPORT_INTERVAL = 5.0  # seconds between reports of waiting: 60 bytes each
TRANSFER_PAUSE = 0.0005  # seconds between checks of point-to-point transfers that nobody waits for
_LEAVING_PAUSE = 0.005  # seconds between checks of groups that this rank has left and others have not

_ACTIVE_TIME = 0.1
"""Seconds after the last transfer in which the thread does not sleep, so that the next transfer need not wake it."""


class Member(Protocol):
    """A process group, as the background thread needs it."""

    def check_deadlines(self, now: float) -> None:
        """Fails the group if an operation is overdue."""

    def waited(self) -> float:
        """Returns the seconds that this rank has waited for others."""

    def has_left(self) -> bool:
        """Returns whether all ranks have left the group."""

    def shutdown(self) -> None:
        """Leaves the group."""

    def see_fork(self) -> None:
        """Runs in a forked child: marks the group as unusable there."""


class Transfer(Protocol):
    """A point-to-point operation in progress."""

    def progress(self) -> bool:
        """Makes progress. Returns whether it has ended."""


class Background:
    """Serves the groups of one backend, in a thread of its own."""

    uses_callers = True
    """Whether a collective may run in the thread that calls it. Nothing would free that thread from a call of the library that waits for a
    dead rank, so this is False where the other ranks go on without their library."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self.threads: WeakSet[threading.Thread] = WeakSet()  # those that run collectives of the groups
        self._leaving: list[Member] = []
        self._transfers: list[Transfer] = []
        self._work_there = threading.Event()
        self._asleep = False
        self._over = False
        self._reported = time.monotonic()
        self._thread = threading.Thread(target=self._attend, name=name, daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._see_fork)

    def see_trouble(self, why: str) -> None:
        """Called if a group fails."""

    def see_hang(self, why: str) -> None:
        """Called if a thread of the script hangs inside the library after its group has failed."""

    def add(self, member: Member) -> None:
        with self._lock:
            self._members.append(member)

    def leave(self, member: Member) -> None:
        """Serves a group until all ranks have left it."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)
                self._leaving.append(member)
        self._wake()

    def forget(self, member: Member) -> None:
        """Removes a group that has failed."""
        with self._lock:
            self._members = [one for one in self._members if one is not member]
            self._leaving = [one for one in self._leaving if one is not member]

    def attend(self, transfer: Transfer) -> None:
        with self._lock:
            self._transfers.append(transfer)
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        self._work_there.set()

    def _attend(self) -> None:
        active, checked = time.monotonic(), 0.0
        while not self._over:
            now = time.monotonic()
            if self._transfers:
                active = now
                with self._lock:
                    transfers = tuple(self._transfers)
                ended = [one for one in transfers if one.progress()]
                with self._lock:
                    self._transfers = [one for one in self._transfers if one not in ended]
            if now - checked > CHECK_INTERVAL or self._leaving:
                checked = now
                self._check(now)
            if now - active < _ACTIVE_TIME:
                time.sleep(TRANSFER_PAUSE)
            elif self._leaving:
                time.sleep(_LEAVING_PAUSE)
            else:
                self._asleep = True
                if not self._transfers:  # checked after `_asleep` is set: a later transfer wakes this thread
                    self._work_there.wait(CHECK_INTERVAL)
                self._work_there.clear()
                self._asleep = False

    def _check(self, now: float) -> None:
        with self._lock:
            members, leaving = tuple(self._members), tuple(self._leaving)
        for member in (*members, *leaving):
            member.check_deadlines(now)
        if now - self._reported > REPORT_INTERVAL:
            self._reported = now
            log(**{"rankdeck.waited": round(sum(member.waited() for member in members), 6)})
        gone = [member for member in leaving if member.has_left()]
        with self._lock:
            self._leaving = [member for member in self._leaving if member not in gone]

    def _see_fork(self) -> None:
        for member in self._members:
            member.see_fork()


def name_ranks(ranks: Sequence[int]) -> str:
    """Returns ranks as words: "rank 1" or "ranks 1, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
