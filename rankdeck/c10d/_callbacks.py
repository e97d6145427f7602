"""Threads that complete the futures of collectives, and so run the callbacks that a script has attached to them.

A callback may start further collectives and wait for them, as PowerSGD does, so it never runs in the thread that runs the group's
collectives. Futures of collectives that a callback has started are completed in another thread: there is one thread for each depth of
nesting, so that callbacks of one depth run in the order of their collectives on every rank.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

_here = threading.local()
_queues: list[SimpleQueue[Callable[[], object]]] = []
_starting = threading.Lock()


def depth() -> int:
    """Returns the nesting depth of callbacks in the current thread; 0: not in a callback."""
    return int(getattr(_here, "depth", 0))


def run(begun_at: int, complete: Callable[[], object]) -> None:
    """Completes a future later, in another thread; its collective was started at the depth `begun_at`."""
    with _starting:
        while len(_queues) <= begun_at:
            _queues.append(SimpleQueue())
            threading.Thread(target=_serve, args=(len(_queues),), name="rankdeck callbacks", daemon=True).start()
    _queues[begun_at].put(complete)


def settle(seconds: float) -> None:
    """Waits until the futures of all ended collectives are completed, for at most so many seconds. Does nothing in a callback."""
    for queue in _queues if not depth() else ():
        is_settled = threading.Event()
        queue.put(is_settled.set)
        is_settled.wait(seconds)


def _serve(mine: int) -> None:
    _here.depth = mine
    while True:
        complete = _queues[mine - 1].get()
        try:
            complete()
        except Exception:  # noqa: BLE001 - from a callback, whose caller is this loop
            traceback.print_exc()
        del complete
