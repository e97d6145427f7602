"""Hosts the c10d store of one attempt, in a process of its own: no rank's death can take it away.

Run as a file: `python store_host.py FD HOST PORT NEWS`. FD is a listening socket on that address, taken before this process
existed, so that the port is known and is nobody else's while torch is still being imported here; ranks that connect
meanwhile wait in its queue. NEWS is a named pipe (or empty), from which lines `[number, news]` are put into the store, where
`rankdeck.elastic` waits for them in each rank.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

PREFIX = "rankdeck/elastic"
"""Of the keys with which the supervisor and the ranks of an elastic training speak."""


def main() -> None:
    """Serves until a signal ends it."""
    del sys.path[0]  # the folder of this file: its module names must not hide anybody's
    descriptor, host, port, news = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's stubs do not list it

    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor, timeout=timedelta(days=1)
    )
    print(f"store listens on {host} port {store.port}", flush=True)  # noqa: T201 - into a log file of the run
    if news:
        with open(os.open(news, os.O_RDWR | os.O_CLOEXEC), "rb", buffering=0) as pipe:  # both ways: it never ends
            for line in io.BufferedReader(pipe):
                publish(store, *json.loads(line))
    while True:
        signal.pause()


def publish(store: Any, number: int, news: object) -> None:
    """Puts news into the store: for ranks that begin to listen later, and for each that listens now under a key of its own.

    Args:
        store: of the attempt.
        number: of the news, counted from 0.
        news: can be written as JSON.
    """
    text = json.dumps(news)
    store.set(f"{PREFIX}/news/{number}", text)
    for listener in range(1, store.add(f"{PREFIX}/listeners", 0) + 1):
        store.set(f"{PREFIX}/news/{number}/{listener}", text)


if __name__ == "__main__":
    main()
