"""Point-to-point operations: sending or receiving a tensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rankdeck.c10d._agreement import NotHereError
from rankdeck.c10d._tensors import Staged
from rankdeck.c10d._work import Request, Work, poll


class Transfer(Work):
    is_transfer = True

    def __init__(
        self,
        what: str,
        target: Staged | None,
        host: torch.Tensor,
        request: Request,
        timeout: float,
        end: Callable[[Work, Exception | None], None],
    ) -> None:
        super().__init__(what, [] if target is None else [target.tensor], timeout)
        self._target, self._host, self._request, self._end = target, host, request, end
        self._asking = threading.Lock()

    def progress(self) -> bool:
        """Checks whether it has ended, unless another thread is doing so."""
        if not self._finished and self._asking.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._asking.release()
        return self._finished

    def _ask(self) -> bool:
        """Checks whether it has ended. The caller holds `_asking`: only one thread at a time may test a request."""
        if not self._finished:
            try:
                if self._request.is_done():
                    if self._target is not None:
                        self._target.give_back()
                    self._end(self, None)
            except Exception as error:  # noqa: BLE001 - from the library or the copy
                self._end(self, error)
        return self._finished

    def _wait(self, seconds: float | None) -> None:
        end = self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds)
        with self._asking:
            if poll(self._ask, lambda: time.monotonic() > end):
                return
        if end == self.deadline:
            self._end(self, NotHereError())
        else:
            raise dist.DistBackendError(f"{self.what} continues after the {seconds:g} s that wait() was given")

    def give_up(self) -> None:
        """Cancels a receive whose sender has not started."""
        if self._target is not None:
            with self._asking:
                if not self._ask():
                    self._request.cancel()
                    self._ask()
        else:
            self.progress()

    def is_completed(self) -> bool:
        return self.progress()

    def _source_rank(self) -> int:
        """Rank of the sender of a received tensor, in the group."""
        return self._request.source

    source_rank = _source_rank
