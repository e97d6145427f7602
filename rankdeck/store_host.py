"""Hosts the c10d store of one attempt in a process of its own, so that it survives any rank.

Run as a file: `python store_host.py FD HOST PORT NEWS TITLE`. FD is a listening socket on that address. The agent opened it before it started
this process, so the port is known and taken while torch is being imported here; ranks that connect meanwhile wait in its queue. NEWS
is a named pipe (or empty): lines `[number, message]` from the supervisor are put into the store, where `rankdeck.elastic` waits for them.
A message is `[word, generation, ranks, signature]`. TITLE is what `ps` shows of this process: run and node.
"""

import contextlib
import functools
import io
import json
import os
import signal
import sys
import traceback
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

NO_TORCH, NO_STORE = 69, 70
"""Exit status if this Python has no torch, so that ranks need no store either, and if torch can't open the store. The state machine
of runs (`engine/core/run/store_events.py`) uses the same numbers."""

PREFIX = "rankdeck/elastic"  # prefix of the keys that the supervisor and the ranks of an elastic training use


def main() -> None:
    """Serves until a signal ends this process."""
    del sys.path[0]  # the folder of this file, whose modules must not hide others
    descriptor, host, port, news = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    show_title(sys.argv[5])
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(
            number, signal.SIG_IGN
        )  # sent to all processes before a login or a job ends: ranks need the store until then
    try:
        store = open_store(descriptor, host, port)
    except ModuleNotFoundError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(NO_TORCH if error.name == "torch" else NO_STORE)
    except Exception:  # noqa: BLE001 - of torch, or of its libraries
        traceback.print_exc()
        sys.exit(NO_STORE)
    with contextlib.suppress(OSError):  # a full disk
        print(f"store listens on {host} port {store.port}", flush=True)  # noqa: T201 - into a log file of the run
    if news:
        with open(
            os.open(news, os.O_RDWR | os.O_CLOEXEC), "rb", buffering=0
        ) as pipe:  # read and write, so that it never ends
            for line in io.BufferedReader(pipe):
                publish(store, *json.loads(line))
    while True:
        signal.pause()


def open_store(descriptor: int, host: str, port: int) -> Any:
    """Returns a store that accepts connections from a socket which listens already."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's stubs do not list it

    create = functools.partial(
        TCPStore,
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=descriptor,
        timeout=timedelta(days=1),
    )
    try:
        return create()
    except NotImplementedError:  # torch 2.4 to 2.7: only the store without libuv takes a socket
        return create(use_libuv=False)


def show_title(about: str) -> None:
    """Makes `ps` show what this process is, with a module that the agent has put beside this package."""
    titles = spec_from_file_location("rankdeck_titles", Path(__file__).parents[2] / "titles.py")
    with contextlib.suppress(OSError):  # the folder was moved
        assert titles is not None
        assert titles.loader is not None
        module = module_from_spec(titles)
        titles.loader.exec_module(module)
        module.show_title("store", about)


def publish(store: Any, number: int, news: Any) -> None:
    """Puts a message into the store, under a key for each rank; ranks read their messages one after the other. `number`: number of the
    message, counted from 0. `news`: the message, with the number of ranks, and its signature if the attempt has a secret."""
    word, generation, ranks, *signature = news
    text = " ".join([*signature, json.dumps([word, generation])])
    for rank in range(ranks):
        store.set(f"{PREFIX}/news/{number}/{rank}", text)


if __name__ == "__main__":
    main()
