"""Whether the processes of ranks on the same machine are alive. The library does not report their end."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping

_INTERVAL = 0.25  # seconds between two checks


class PeerGoneError(RuntimeError):
    """A rank's process has ended."""


def name_process() -> str:
    """Returns a name of this process for other ranks: machine and PID namespace, and the PID."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
        return f"{machine} {os.readlink('/proc/self/ns/pid')} {os.getpid()}"
    except OSError:
        return ""


class Peers:
    """Processes of the other ranks, by their `name_process()`."""

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
            except (OSError, AttributeError):  # this kernel or Python has no pidfd_open
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def check(self, rank: int | None = None) -> None:
        """Raises PeerGoneError if the process of `rank` has ended; without a rank, if any process has. Most calls return the result of an
        earlier check."""
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
        with self._lock:
            ranks, self._ranks = self._ranks, {}
            for descriptor in ranks:
                os.close(descriptor)
