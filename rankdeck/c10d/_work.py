"""What torch is given for an operation that is under way, and how it is waited for.

C++ sees `wait` and `get_future` only. `torch._C._distributed_c10d._create_work_from_future` would do for those, but its `wait`
says that all is well when the future holds an error (torch 2.13), so that a failed collective would pass for a good one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Protocol

import torch
import torch.distributed as dist
from torch.futures import Future

from rankdeck.c10d import _callbacks

SPIN_TIME = 0.0005
"""Seconds that a rank asks again and again before it begins to sleep in between: ranks of one job are mostly that close."""

_LONGEST_PAUSE = 0.001
_SHARE_OF_WAIT = 16
"""A pause is this part of the time waited so far, so that waiting costs no core and delays by a few percent at most."""

_NO_TIMEOUT = timedelta(0)
"""What torch hands over where nobody has named a timeout."""

_HELD_BY_NOBODY = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
"""Up to torch 2.6 a work that was handed to C++ dies when nobody in Python holds it (pytorch#146376)."""

_held: set[dist.Work] = set()
"""With such a torch: the works that nobody has waited for, or asked for their future, yet."""


def poll(is_done: Callable[[], bool], is_over: Callable[[], bool], spin: float = SPIN_TIME) -> bool:
    """Waits for what goes on only while somebody asks for it.

    Args:
        is_done: whether the request has completed.
        is_over: whether to give up, asked once the spinning is over.
        spin: seconds to ask without a pause.

    Returns:
        Whether it has completed.
    """
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


class Work(dist.Work):
    """An operation of a process group.

    Args:
        what: its name and arguments, for people.
        outputs: the tensors that it writes, which are the result.
        timeout: seconds that it may take.
    """

    is_transfer = False
    """Whether it is between two ranks."""

    def __init__(self, what: str, outputs: Sequence[torch.Tensor], timeout: float) -> None:
        super().__init__()
        self.what = what
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.depth = _callbacks.depth()
        self._outputs = outputs
        self._error: Exception | None = None
        self._finished = False
        self._future: Future[list[torch.Tensor]] | None = None
        self._changing = Lock()
        self._running = Lock()
        self._running.acquire()
        if _HELD_BY_NOBODY:
            _held.add(self)

    def finish(self, error: Exception | None = None) -> None:
        """Says that it has ended, well or with an error. What is said first holds."""
        with self._changing:
            if self._finished:
                return
            self._error, self._finished = error, True
            future = self._future
        self._running.release()
        if future is not None:
            _callbacks.run(self.depth, partial(self._complete, future))

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits for the end.

        Args:
            timeout: how long at most; 0: the operation's own timeout ends it.

        Raises:
            torch.distributed.DistBackendError: it has failed, or goes on after this timeout.
        """
        if not self._finished:
            self._wait(timeout.total_seconds() if timeout > _NO_TIMEOUT else None)
        if _HELD_BY_NOBODY:
            _held.discard(self)
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, seconds: float | None) -> None:
        if not self._running.acquire(timeout=-1 if seconds is None else seconds):
            raise dist.DistBackendError(f"{self.what} goes on after the {seconds:g} s that wait() was given")
        self._running.release()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._finished

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._finished and self._error is None

    def exception(self) -> Exception | None:
        """Why it failed."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that it has written."""
        self.wait()
        return list(self._outputs)

    def synchronize(self) -> None:
        """Waits for the end: what comes back is in place for every CUDA stream."""
        self.wait()

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors. An error arrives in it as a RuntimeError with the same words."""
        with self._changing:
            if self._future is None:
                devices = list({one.device: None for one in self._outputs if one.is_cuda})
                self._future = Future(devices=[*devices])
                # An error is set by a callback that raises: set_exception() would tell Python, but not the C++ of DDP.
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
        if self._error is not None:
            raise self._error
        return future.value()


class Operation(Work):
    """A collective: what runs once all ranks agree on it.

    Args:
        what: what all ranks must agree on, as text.
        action: does it. Given the largest `vote` of any rank.
        vote: a number that the ranks tell one another.
        outputs, timeout: see Work.
    """

    def __init__(
        self,
        what: str,
        action: Callable[[int], None],
        outputs: Sequence[torch.Tensor],
        timeout: float,
        vote: int = 0,
    ) -> None:
        super().__init__(what, outputs, timeout)
        self.action = action
        self.vote = vote
        self.in_caller = False
        """Whether the thread that called torch runs it itself."""


class Request(Protocol):
    """A point-to-point transfer, as the library has it."""

    @property
    def source(self) -> int:
        """The rank that a received tensor has come from."""

    def is_done(self) -> bool:
        """Whether it has ended. Raises where it has failed."""

    def cancel(self) -> None:
        """Takes a receive back whose sender has not begun. It may end well all the same."""


class Together(dist.Work):
    """Several operations as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits for all of them. Raises what one of them raises."""
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        """Whether all have ended."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Future[list[Future[list[torch.Tensor]]]]:
        """A future of all their futures."""
        return torch.futures.collect_all([work.get_future() for work in self._works])
