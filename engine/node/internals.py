"""Private names of Python and torch that a template and its ranks use, since nothing public does the same. `make versions` looks for each
with every torch and Python. `template.py` loads this file from its folder. Standard library only; Python 3.8 and later."""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from typing import Any, Callable, Dict, List


def forget_exit_handlers() -> None:
    atexit._clear()


def finalizers() -> Dict[Any, Any]:  # noqa: UP006
    """The `weakref.finalize` objects that are alive, with what they call; copied, because others come and go."""
    return dict(weakref.finalize._registry)  # type: ignore[attr-defined]


def operator_removals() -> List[Any]:  # noqa: UP006
    """Those with which `torch.library` removes operators."""
    act = getattr(sys.modules.get("torch.library"), "_del_library", None)
    return [one for one, info in finalizers().items() if act is not None and info.func is act]


def has_pool() -> bool:
    """Whether a pool of processes is open. A collection would free objects that the pool needs for its own end."""
    kind = getattr(sys.modules.get("multiprocessing.pool"), "Pool", None)
    pools = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)] if kind else []
    return any(pool._state == "RUN" for pool in pools)


def is_in_bad_fork(torch: Any) -> bool:
    """Whether a process before this fork has initialised CUDA."""
    return bool(torch.cuda._is_in_bad_fork())


def calls_entry_points(torch: Any) -> bool:
    """Whether `import torch` calls entry points of the group `torch.backends`: torch 2.5 and newer."""
    return hasattr(torch, "_import_device_backends")


def main_runner() -> Callable[[str], None]:
    """The function with which `python -m` runs a module. It is called directly, so that tracebacks have no frame of ours."""
    import runpy  # few ranks need it

    return runpy._run_module_as_main  # type: ignore[attr-defined, no-any-return]
