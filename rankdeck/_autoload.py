"""`import torch` calls this in a rank (entry point group `torch.backends`), so that scripts need no import of rankdeck. Before torch 2.5
the template calls it, and `rankdeck.init_process_group`. Nothing here raises, because `import torch` would fail."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import threading
import traceback
from typing import Any

from rankdeck._collectives import listen
from rankdeck._imports import report_imports
from rankdeck._metrics import VARIABLE, log
from rankdeck._torch_compat import joins_threads_with_lock, settle_before


@functools.cache
def register() -> None:
    """Registers the profile's backend with torch if rankdeck provides it, and wraps functions of `torch.distributed`. Once in a process."""
    try:
        _report_raised()
        _wrap_joining()
        if "mpi" in os.environ.get("RANKDECK_BACKEND", ""):
            import rankdeck.c10d.mpi
        if "ucc" in os.environ.get("RANKDECK_BACKEND", ""):
            import rankdeck.c10d.ucc  # noqa: F401
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"rankdeck: torch can't be prepared for this backend: {type(error).__name__}: {error}\n")


def _report_raised() -> None:
    """Makes a rank report the exception that ends its main thread, because its process may stay: for a thread, or an exit handler."""
    original = sys.excepthook

    @functools.wraps(original)
    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> Any:
        whole = trace
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = (
            f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace is not None else ""
        )
        threads = [one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
        log(**{"rankdeck.raised": f"{kind.__name__}: {str(error)[:200]}{place}", "threads": ", ".join(threads)[:200]})
        with contextlib.suppress(OSError, KeyError):  # a script may have redirected stderr into a file of its own
            errors, own = os.environ[VARIABLE].removesuffix(".metrics") + ".err", os.fstat(2)
            if not (stat.S_ISFIFO(own.st_mode) or os.path.samestat(os.stat(errors), own)):
                # O_NONBLOCK, because anything may be in the place of the file: a pipe without a reader would block.
                flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(errors, flags), "a") as file:
                    traceback.print_exception(kind, error, whole, file=file)
        return original(kind, error, whole)

    sys.excepthook = excepthook


_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""Names of the arguments of `init_process_group`, in their order."""


def _waits_for_nobody(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool | None:
    """Whether this is a process that a rank has started, and none of the processes that it meets will host a store.

    Ranks lead a session of their own. With torch's variable, every process expects the launcher to host the store, so children of a rank
    that meet at another address than the run's wait for ever. A file, or a store that the script has made, needs no host.

    Args: arguments, named: arguments of `init_process_group`.
    """
    given = {**dict(zip(_ARGUMENTS, arguments)), **named}
    if given.get("store") is not None or str(given.get("init_method")).startswith("file:"):
        return None
    is_child = os.getsid(0) != os.getpid()
    return True if is_child and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else None


def _wrap_joining() -> None:
    """Makes `init_process_group` report when it begins and returns, so that rankdeck can name missing ranks if a launch hangs. It also
    starts to answer questions about collectives."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **named: Any) -> Any:
        log(joining=True, orphan=_waits_for_nobody(arguments, named))
        if os.environ.get("RANK") == "0" and os.getsid(0) == os.getpid():
            try:
                log(**{"rankdeck.uses": report_imports()})
            except Exception as error:  # noqa: BLE001 - modules may be any objects
                sys.stderr.write(f"rankdeck: can't tell what the script imports: {type(error).__name__}: {error}\n")
        listen()
        result = original(*arguments, **named)
        log(joined=True)
        return result

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    if joins_threads_with_lock():
        destroy = settle_before(dist.destroy_process_group)
        dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy
