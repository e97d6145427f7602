"""Stops a gang at one step boundary: a SIGINT or SIGTERM to any rank ends all of them after the same step.

The signal is not acted on where it arrives, since ranks get it in different steps and the first to leave would break the
others' all-reduce. They compare notes at the end of each step instead, rank 0 writes its checkpoint, and all of them end by
the same signal: a training that was stopped must not look as if it had finished.

A second signal ends a rank at once. A thread watches for it, because Python runs signal handlers in the main thread only, and
that one may be inside a collective that a dead peer will never complete.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, NoReturn

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_entered: list[StopSignal] = []


def ignore_signals(_: int = 0) -> None:
    """For `worker_init_fn` of a DataLoader: a worker goes on until its rank ends it, also if Ctrl-C reaches both."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopSignal:
    """Takes over SIGINT and SIGTERM while it is entered. Left by an exception, it lets a signal that arrived do what it always does: a
    rank that has lost a peer, say, may wait for long, and must not be deaf meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._number = 0
        self._highest = torch.zeros(1, dtype=torch.int64, device=device)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:  # noqa: PYI034 - typing.Self is of Python 3.11
        arrivals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        _entered.append(self)
        threading.Thread(target=self._watch, args=(arrivals,), name="stop signal", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _entered.remove(self)
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wakeup)
        if self._number and kind is not None and issubclass(kind, Exception):
            signal.raise_signal(self._number)

    def agreed(self) -> int:
        """The signal that any rank got, the same on every rank; 0: go on. A collective: all ranks call it."""
        self._highest.fill_(self._number)
        dist.all_reduce(self._highest, dist.ReduceOp.MAX)
        return int(self._highest.item())

    def leave(self, number: int) -> NoReturn:
        """Ends this process by signal `number`, once every rank is here: rank 0 may have a checkpoint to write first."""
        self.agreed()
        dist.destroy_process_group()
        sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        sys.exit(128 + number)

    def _watch(self, arrivals: int) -> None:
        """The first signal is noted, a second ends the process immediately. The thread ends when the other end of the pipe is closed."""
        while heard := os.read(arrivals, 1):
            if heard[0] not in SIGNALS:
                continue  # SIGCHLD, say, which a DataLoader with workers handles
            if self._number:
                os._exit(128 + heard[0])
            self._number = heard[0]
        os.close(arrivals)


def _hold_signals() -> None:
    if _entered:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _release_signals() -> None:
    if _entered:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _stop_listening() -> None:
    """In a forked worker: a signal that reaches it too would count as the second one of its rank."""
    if _entered:
        signal.set_wakeup_fd(-1)
        _release_signals()


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_stop_listening)
