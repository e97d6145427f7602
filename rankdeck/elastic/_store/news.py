"""Messages from the supervisor to the ranks of an attempt, through the store."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rankdeck.elastic._store.board import POLL_INTERVAL, connect, signed_text, warn_of_forgery
from rankdeck.store_host import PREFIX

CLOSE_TIMEOUT = 5.0  # seconds that the end of a training waits for the listening thread


class News:
    """Messages from the supervisor, in order: a rank is lost, or a generation begins. A separate thread listens, because the main thread
    may be inside a collective that never completes."""

    def __init__(self, generation: int, on_lost: Callable[[int, Any], None]) -> None:
        self.lost = -1  # the newest generation that has lost a rank
        self.generation = generation  # the newest generation that has begun
        self.changed = threading.Condition()
        self._on_lost = on_lost
        self._store = connect()  # before the first generation, whose sockets must not include this one
        self._rank = os.environ["RANK"]  # not counted in the store, where anybody could change the count
        self._number = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="rankdeck elastic", daemon=True)

    def start(self) -> None:
        """Begins to listen; there may be news already. From now on `on_lost` is called in the thread."""
        self._thread.start()

    def close(self, store: Any) -> None:
        """Ends the thread, which would abort the process if it returned from torch while the interpreter exits."""
        self._is_closed = True
        with contextlib.suppress(RuntimeError):  # the store has ended, and the thread too
            store.set(f"{PREFIX}/news/{self._number}/{self._rank}", "")
            self._thread.join(CLOSE_TIMEOUT)
            store.delete_key(
                f"{PREFIX}/news/{self._number}/{self._rank}"
            )  # or a new process of this rank would read it

    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended, so that no generation can form
            while not self._is_closed:
                if not self._take(f"{PREFIX}/news/{self._number}/{self._rank}") and not self._is_closed:
                    time.sleep(POLL_INTERVAL)

    def _take(self, key: str) -> bool:
        """Takes the message of this key, once there is one. Returns False if it is not from the supervisor."""
        text = signed_text(f"{PREFIX}/news/{self._number}", self._store.get(key))
        if not text:  # empty: from `close`
            if not self._is_closed:
                warn_of_forgery()
            return False
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
        return True

    def await_condition(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition is met. Python's signal handlers run meanwhile. `seconds`: the longest wait; None: no limit."""
        with self.changed:
            end = None if seconds is None else time.monotonic() + seconds
            while not condition():
                left = 0.5 if end is None else min(0.5, end - time.monotonic())
                if left <= 0:
                    return False
                self.changed.wait(left)
            return True
