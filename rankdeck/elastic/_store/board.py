"""Messages between the ranks of an elastic training, through the store, while a generation forms. Whoever can connect to the store can
write to it. So all values of rankdeck are signed, with a secret that the supervisor makes for each attempt. A value that is not from this
run is ignored: its reader waits until the real one has replaced it."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
import time
from datetime import timedelta
from typing import Any

from rankdeck._torch_compat import has_marked, mark_key, set_once
from rankdeck.store_host import PREFIX

KEY = "RANKDECK_STORE_KEY"
"""Variable with the secret of the attempt. Without it, nothing is signed."""

CONNECT_TIMEOUT = 300.0
"""Seconds in which a connection to the store is made. The agent listens before ranks start, so only a store that has ended refuses it."""

POLL_INTERVAL = 0.1  # seconds between two reads of a value that another process writes

_warned = False


def connect() -> Any:
    """Connects to the store of this attempt. Its reads wait without a limit. Raises RuntimeError if the store has ended."""
    import torch.distributed as dist

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=CONNECT_TIMEOUT))  # type: ignore[attr-defined]
    store.set_timeout(timedelta(days=365))
    return store


def has_ended() -> bool:
    """Whether the store of this attempt has ended: its machine answers, and nothing listens there any more."""
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), CONNECT_TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def sign(name: str, text: str) -> str:
    """Returns a text after its signature, which holds for this key of the store only: HMAC-SHA256 of both."""
    secret = os.environ.get(KEY, "")
    if not secret:
        return text
    return f"{hmac.new(secret.encode(), f'{name} {text}'.encode(), hashlib.sha256).hexdigest()} {text}"


def signed_text(name: str, value: bytes) -> str | None:
    """Returns the text that was signed for this name; None: the value is not from this run."""
    text = value.decode(errors="replace")
    if os.environ.get(KEY):
        text = text.partition(" ")[2]
    return text if hmac.compare_digest(sign(name, text).encode(), value) else None


def warn_of_forgery() -> None:
    """Writes to stderr, once, that another program writes to the store."""
    global _warned
    if not _warned:
        _warned = True
        rank = os.environ["RANK"]
        sys.stderr.write(f"rankdeck: rank {rank} ignores a value in the store that is not from this run\n")


class Board:
    """The values of one attempt to form a generation, in the store."""

    def __init__(self, store: Any, generation: int, attempt: int) -> None:
        self._store = store
        self.prefix = f"{PREFIX}/{generation}.{attempt}"

    def put(self, name: str, text: str) -> None:
        key = f"{self.prefix}/{name}"
        self._store.set(key, sign(key, text))
        self._wake(key)

    def put_first(self, name: str, text: str) -> None:
        key = f"{self.prefix}/{name}"
        there = set_once(self._store, key, sign(key, text))
        if signed_text(key, there) is None:
            self._store.set(key, sign(key, text))
        self._wake(key)

    def _wake(self, key: str) -> None:
        """Wakes ranks that wait for a value. `compare_set` does not, in the store of torch that has no libuv."""
        mark_key(self._store, key)
        self._store.set(f"{key}/there", "1")

    def get(self, name: str) -> str:
        key = f"{self.prefix}/{name}"
        self._store.wait([f"{key}/there"])
        while (text := signed_text(key, self._store.get(key))) is None:
            warn_of_forgery()
            time.sleep(POLL_INTERVAL)
        return text

    def have_all(self, names: list[str]) -> bool:
        keys = [f"{self.prefix}/{name}" for name in names]
        return has_marked(self._store, keys) and None not in self._look(keys)

    def get_all(self, names: list[str]) -> list[str]:
        found = self._look([f"{self.prefix}/{name}" for name in names])
        return [self.get(name) if text is None else text for name, text in zip(names, found)]

    def _look(self, keys: list[str]) -> list[str | None]:
        """Waits until there is something under each key. Returns signed values, and None for others."""
        return [signed_text(key, value) for key, value in zip(keys, self._store.multi_get(keys))]
