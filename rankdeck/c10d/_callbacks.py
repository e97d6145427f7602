"""The threads in which futures of collectives are completed, and with them the callbacks that a script has attached.

A callback may begin further collectives and wait for them, as PowerSGD does. So it never runs in the thread that does the group's
collectives. The futures of collectives that were begun by a callback are completed in another thread again: a thread for each depth
of nesting, so that callbacks of one depth run in the order of their collectives on every rank.
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
    """How deep in callbacks the current thread is; 0: in none."""
    return int(getattr(_here, "depth", 0))


def run(begun_at: int, complete: Callable[[], object]) -> None:
    """Completes a future, later and in another thread.

    Args:
        begun_at: the depth at which its collective was begun.
        complete: does it.
    """
    with _starting:
        while len(_queues) <= begun_at:
            _queues.append(SimpleQueue())
            threading.Thread(target=_serve, args=(len(_queues),), name="rankdeck callbacks", daemon=True).start()
    _queues[begun_at].put(complete)


def settle(seconds: float) -> None:
    """Waits until the futures of all collectives that have ended are completed, or for so many seconds. Not from a callback."""
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
        except Exception:  # noqa: BLE001 - of a callback, which has nobody else to tell
            traceback.print_exc()
        del complete
