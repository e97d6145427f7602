"""Whether the processes of the other ranks are alive, for those on this machine: the library has no way to tell."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping

_INTERVAL = 0.25
"""Seconds between two looks."""


class PeerGoneError(RuntimeError):
    """A rank's process has ended."""


def name_process() -> str:
    """This process, for others to look after: where its number means something, and its number."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
        return f"{machine} {os.readlink('/proc/self/ns/pid')} {os.getpid()}"
    except OSError:
        return ""


class Peers:
    """The other ranks' processes.

    Args:
        names: what `name_process` says in each, by rank.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}
        self._gone: set[int] = set()
        self._looked = 0.0
        self._lock = threading.Lock()
        here = name_process()
        for rank, name in names.items():
            if name == here or name.rpartition(" ")[0] != here.rpartition(" ")[0] or not name:
                continue
            try:
                descriptor = os.pidfd_open(int(name.rpartition(" ")[2]))
            except ProcessLookupError:
                self._gone.add(rank)
                continue
            except (OSError, AttributeError):  # there is no such call here
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def check(self, rank: int | None = None) -> None:
        """Raises PeerGoneError where one has ended, or where this one has. Looks now and then only."""
        now = time.monotonic()
        if self._ranks and now - self._looked >= _INTERVAL:
            with self._lock:
                if self._ranks:
                    self._gone.update(self._ranks[descriptor] for descriptor, _ in self._poll.poll(0))
            self._looked = now
        gone = sorted(one for one in self._gone if rank in (None, one))
        if gone:
            raise PeerGoneError(f"the process of rank {', '.join(map(str, gone))} has ended")

    def close(self) -> None:
        """Looks no more."""
        with self._lock:
            ranks, self._ranks = self._ranks, {}
            for descriptor in ranks:
                os.close(descriptor)
