"""Ends the ranks that a template forks without the tear-down of torch.

It takes a quarter of a second of processor time, more than all else that most ranks of tests do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class QuickEnd:
    """Ends a rank when its program and all its exit handlers are through.

    What the program has made is freed as the interpreter would free it: objects of `__main__`, modules that it has imported, cycles. The
    modules of the template stay as they are. Make it in the template, before anything else registers an exit handler.
    """

    def __init__(self) -> None:
        self._rank, self._request = 0, dict[str, object]()
        self._shared: set[str] = set()
        self._register = atexit.register
        atexit.register(self._end)  # the first to be registered is the last to run
        atexit.register = self._see  # type: ignore[assignment]

    def _see(self, handler: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
        """Takes the place of `atexit.register` until a rank registers the handler that notes its end, as its first act."""
        if getattr(handler, "__name__", "") == "note_end":
            self._rank, self._request, self._shared = os.getpid(), args[1], set(sys.modules)
            atexit.register = self._register
        return self._register(handler, *args, **options)

    def _end(self) -> None:
        status = self._request.get("status")
        if self._rank != os.getpid() or not isinstance(
            status, int
        ):  # the template itself, or a process that a rank has forked
            return
        if getattr(sys, "last_type", None) is KeyboardInterrupt:  # the interpreter ends itself with the signal
            return
        atexit._clear()  # what has run needs its globals no more
        sys.last_type = sys.last_value = sys.last_traceback = None
        for name in set(sys.modules) - self._shared | {"__main__"}:
            del sys.modules[name]
        gc.collect()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
        os._exit(status)
