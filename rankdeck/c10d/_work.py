"""Operations in progress, as torch sees them, and how a thread waits for them.

C++ sees only `wait` and `get_future`. `torch._C._distributed_c10d._create_work_from_future` provides both, but its `wait` reports success
if the future holds an error (torch 2.13), so a failed collective would look successful.

Threads complete the futures of collectives, and so run the callbacks that a script has attached to them. A callback may start further
collectives and wait for them, as PowerSGD does, so it never runs in the thread that runs the group's collectives. Futures of collectives
that a callback has started are completed in another thread: there is one thread for each depth of nesting, so that callbacks of one depth
run in the order of their collectives on every rank.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.futures import Future

from rankdeck.c10d._tensors import Staged

SPIN_TIME = 0.0005  # seconds that a rank polls without a pause: ranks of one job usually arrive within this time

_LONGEST_PAUSE = 0.001  # seconds

_SHARE_OF_WAIT = 16
"""A pause is 1/16 of the time waited so far, so that waiting uses little processor time and delays by a few percent."""

_NO_TIMEOUT = timedelta(0)  # torch passes this if the caller gives no timeout

_HELD_BY_NOBODY = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
"""Up to torch 2.6, a work that was passed to C++ dies when Python holds no reference to it (pytorch#146376)."""

_changing = Lock()  # held while an operation ends or gets its future

_held: set[dist.Work] = set()  # with such a torch: works for which nobody has waited or requested the future


def poll(is_done: Callable[[], bool], is_over: Callable[[], bool], spin: float = SPIN_TIME) -> bool:
    """Polls a request until it completes. Requests of MPI and UCC make progress only in such calls. `is_over`: returns whether to give
    up; called after the spinning. `spin`: seconds to poll without a pause."""
    if is_done():
        return True
    began = time.monotonic()
    while time.monotonic() - began < spin:
        if is_done():
            return True
    while not is_done():
        if is_over():
            return False
        time.sleep(min(_LONGEST_PAUSE, (time.monotonic() - began) / _SHARE_OF_WAIT))
    return True


class _Here(threading.local):
    """State of the current thread. `depth`: nesting depth of callbacks; 0: not in a callback. `call`: the operation that torch's tools see
    (see `_arguments`). `ending`: a thread that ends the event of the profiler that an operation has begun."""

    depth = 0
    call: Any = None
    ending: threading.Thread | None = None


here = _Here()


class Votes(NamedTuple):
    """The numbers that the ranks have announced."""

    largest: int
    smallest: int


NO_VOTES = Votes(0, 0)  # of most collectives


class Work(dist.Work):
    """An operation of a process group, with its name and arguments for messages."""

    is_transfer = False  # whether this is a point-to-point operation
    error: Exception | None = None
    _finished = False
    _future: Future[list[torch.Tensor]] | None = None

    def __init__(self, what: str, outputs: Sequence[torch.Tensor], timeout: float) -> None:
        super().__init__()
        self.what = what
        self.seconds = timeout
        self.deadline = time.monotonic() + timeout
        self.depth, self._ending = here.depth, here.ending
        if self._ending is not None:
            here.ending = None  # the first work of an operation ends its event
        self._outputs = outputs
        self._running = Lock()
        self._running.acquire()
        if _HELD_BY_NOBODY:
            _held.add(self)

    def finish(self, error: Exception | None = None) -> None:
        """Marks it as ended, successfully or with an error. Only the first call counts."""
        with _changing:
            if self._finished:
                return
            if self._ending is not None:
                self._ending.start()
            self.error, self._finished = error, True
            future = self._future
        self._running.release()
        if future is not None:
            _complete_later(self.depth, partial(self._complete, future))

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits until it ends, or for a timeout other than 0. Raises torch.distributed.DistBackendError: it has failed, or continues
        after this timeout."""
        if not self._finished:
            self._wait(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
        if _HELD_BY_NOBODY:
            _held.discard(self)
        if self._ending is not None:
            self._ending.join()
        if self.error is not None:
            raise self.error
        return True

    def _wait(self, seconds: float | None) -> None:
        if not self._running.acquire(timeout=-1 if seconds is None else seconds):
            raise dist.DistBackendError(f"{self.what} continues after the {seconds:g} s that wait() was given")
        self._running.release()

    def is_completed(self) -> bool:
        return self._finished

    def is_success(self) -> bool:
        return self._finished and self.error is None

    def exception(self) -> Exception | None:
        return self.error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._outputs)

    def synchronize(self) -> None:
        """Waits until it ends. Its outputs are then ready for every CUDA stream."""
        self.wait()

    def get_future(self) -> Future[list[torch.Tensor]]:
        """Returns a future of the tensors. An error arrives in it as a RuntimeError with the same message."""
        with _changing:
            if self._future is None:
                devices = list({one.device: None for one in self._outputs if one.is_cuda})
                self._future = Future(devices=[*devices])
                # A callback that raises sets the error: set_exception() would show it to Python, but not to the C++ of DDP.
                self._visible = self._future.then(self._value)
                complete = self._finished
            else:
                complete = False
        if complete:
            self._complete(self._future)
        return self._visible

    def _complete(self, future: Future[list[torch.Tensor]]) -> None:
        future.set_result(list(self._outputs))
        if _HELD_BY_NOBODY:
            _held.discard(self)

    def _value(self, future: Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return future.value()


class Operation(Work):
    """A collective, whose action runs once all ranks agree on it. `what`: the text that all ranks must agree on."""

    in_caller = False  # whether the thread that called torch runs it

    def __init__(
        self,
        what: str,
        action: Callable[[Votes], None],
        outputs: Sequence[torch.Tensor],
        timeout: float,
        targets: Sequence[Staged],
        vote: int,
    ) -> None:
        super().__init__(what, outputs, timeout)
        self.action, self.targets, self.vote = action, targets, vote


class Request(Protocol):
    """A point-to-point transfer of a library."""

    @property
    def source(self) -> int:
        """Rank of the sender."""

    def is_done(self) -> bool:
        """Returns whether it has ended. Raises if it has failed."""

    def cancel(self) -> None:
        """Cancels a receive whose sender has not started. It may still complete."""


class Messages(Protocol):
    """The point-to-point transfers of a group."""

    tags: int  # number of tags, which are counted from 0

    def send(self, host: torch.Tensor, rank: int, tag: int) -> Request:
        """Starts to send contiguous memory."""

    def receive(self, host: torch.Tensor, rank: int | None, tag: int) -> Request:
        """Starts to receive into contiguous memory. `rank`: the sender; None: any."""


class Together(dist.Work):
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits for all of them. Raises the first error."""
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Future[list[Future[list[torch.Tensor]]]]:
        return torch.futures.collect_all([work.get_future() for work in self._works])


_queues: list[SimpleQueue[Callable[[], object]]] = []
_starting = threading.Lock()


def _complete_later(begun_at: int, complete: Callable[[], object]) -> None:
    """Completes a future later, in another thread; its collective was started at the depth `begun_at`."""
    with _starting:
        while len(_queues) <= begun_at:
            _queues.append(SimpleQueue())
            threading.Thread(target=_serve, args=(len(_queues),), name="rankdeck callbacks", daemon=True).start()
    _queues[begun_at].put(complete)


def settle_callbacks(seconds: float) -> None:
    """Waits at most `seconds` until the futures of all ended collectives are completed. Does nothing in a callback."""
    for queue in _queues if not here.depth else ():
        is_settled = threading.Event()
        queue.put(is_settled.set)
        is_settled.wait(seconds)


def _serve(mine: int) -> None:
    here.depth = mine
    while True:
        complete = _queues[mine - 1].get()
        try:
            complete()
        except Exception:  # noqa: BLE001 - from a callback, whose caller is this loop
            traceback.print_exc()
        del complete
