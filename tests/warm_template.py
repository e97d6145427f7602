"""As a program, `python warm_template.py FD`: the template of the node agent, for ranks of tests.

It imports a few modules more. And its ranks end without the tear-down of torch, which takes 0.25 s of processor time, more than all else
that most of these ranks do. RANKDECK_TESTS_TORCH=whole in the environment leaves them their end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys

from engine.node import template

template.WARM += ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.testing")  # type: ignore[assignment]


class QuickEnd:
    """Ends a rank when its program and all its exit handlers are through.

    What the program has made is freed as the interpreter would free it: objects of `__main__`, modules that it has imported, cycles. The
    modules of the template stay as they are.
    """

    def __init__(self) -> None:
        self._note_end = template.note_end
        self._rank, self._status = 0, 0
        self._shared: set[str] = set()
        template.note_end = self._remember_status
        atexit.register(self._end)  # the first to be registered is the last to run

    def _remember_status(self, path: str, request: template.Request) -> None:
        self._note_end(path, request)
        # After Ctrl-C the interpreter ends itself with the signal.
        if "status" in request and getattr(sys, "last_type", None) is not KeyboardInterrupt:
            self._rank, self._status = os.getpid(), request["status"]

    def _end(self) -> None:
        if self._rank != os.getpid():  # the template itself, or a process that a rank has forked
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
            os._exit(self._status)

    def share_modules(self) -> None:
        """Takes note of what the template has imported."""
        self._shared = set(sys.modules)


def main() -> None:
    """Serves as the template; in each forked process, runs a rank's program."""
    if os.environ.get("RANKDECK_TESTS_TORCH") != "whole":
        end, warm = QuickEnd(), template.warm

        def warm_and_remember() -> str:
            unfit = warm()
            end.share_modules()
            return unfit

        template.warm = warm_and_remember
    template.main()


if __name__ == "__main__":
    main()
