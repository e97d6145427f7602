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
                number, what = json.loads(line)
                store.set(f"rankdeck/elastic/news/{number}", json.dumps(what))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
