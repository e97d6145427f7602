"""Times the computations of a rank, on the CPU or on its GPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import rankdeck


class Stopwatch:
    """Adds up the seconds in which this rank computes; `seconds` may be set to 0."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time of a `with` block."""
        began = self._now()
        yield
        self.seconds += self._now() - began

    def _now(self) -> float:
        """A GPU computes while Python goes on, so this waits for it."""
        if rankdeck.device().type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
