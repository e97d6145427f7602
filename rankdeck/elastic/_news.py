"""What the supervisor tells the ranks of an attempt, by way of the store."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rankdeck.store_host import PREFIX

CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a training waits for the thread that listens."""


def board(generation: int, attempt: int) -> str:
    """The prefix of the keys with which ranks meet in a generation. `attempt`: how many attempts to form it have failed."""
    return f"{PREFIX}/{generation}.{attempt}"


class News:
    """What the supervisor says to the ranks of an attempt, in order: that a peer is gone, that a generation begins.

    A thread of its own waits for it, since the main thread may be inside a collective that nobody will ever complete.
    """

    def __init__(self, generation: int, on_lost: Callable[[int, Any], None]) -> None:
        self.lost = -1
        """The newest generation that has lost a rank."""
        self.generation = generation
        """The newest generation that has begun."""
        self.changed = threading.Condition()
        self._on_lost = on_lost
        self._store = connect()  # here and not in the thread: it must not be taken for one of the first generation's
        self._listener = self._store.add(f"{PREFIX}/listeners", 1)
        self._number = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="rankdeck elastic", daemon=True)

    def start(self) -> None:
        """Begins to listen; there may be news already. From now on `on_lost` is called in the thread."""
        self._thread.start()

    def close(self, store: Any) -> None:
        """Ends the thread. One that returns from torch while the interpreter ends would abort the process.

        Args:
            store: another connection than the one in which the thread waits.
        """
        self._is_closed = True
        with contextlib.suppress(RuntimeError):  # the store is gone, and the thread with it
            store.set(f"{PREFIX}/news/{self._number}/{self._listener}", "")
            self._thread.join(CLOSE_TIMEOUT)

    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it every chance to find together again
            while self._store.check([f"{PREFIX}/news/{self._number}"]):
                self._take(f"{PREFIX}/news/{self._number}")
            while not self._is_closed:
                self._take(f"{PREFIX}/news/{self._number}/{self._listener}")

    def _take(self, key: str) -> None:
        text = self._store.get(key)
        if not text:
            return  # `close` has written it
        word, generation = json.loads(text)
        self._number += 1
        with self.changed:
            if word == "lost":
                self.lost = max(self.lost, generation)
            else:
                self.generation = max(self.generation, generation)
            self.changed.notify_all()
        if word == "lost":
            self._on_lost(generation, self._store)

    def await_condition(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until the news meet a condition. Python's signal handlers run meanwhile.

        Args:
            condition: asked again whenever news come.
            seconds: how long at most; None: for ever.

        Returns:
            Whether it is met.
        """
        with self.changed:
            end = None if seconds is None else time.monotonic() + seconds
            while not condition():
                left = 0.5 if end is None else min(0.5, end - time.monotonic())
                if left <= 0:
                    return False
                self.changed.wait(left)
            return True


def connect() -> Any:
    """A connection to the store of this attempt, whose reads wait as long as it takes."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=timedelta(days=365))  # type: ignore[attr-defined]
