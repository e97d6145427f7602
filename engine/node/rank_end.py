"""The end of a forked rank: frees what its program has made, and leaves alone what the template had imported.

The interpreter would take apart all modules, and copy for that nearly every page that the rank shares with the template: 0.2 s of
processor time and 130 MB, four times as much as the rank needs to start, join its group and take a step (torch 2.13). Where anything of
the program might depend on that end, it stays with the interpreter. `template.py` loads this file from its folder, before it forks.
Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, List, Set

if TYPE_CHECKING or __name__.startswith("engine."):  # else `template.py` has put it here
    from engine.node import internals

MAPS = "/proc/self/maps"

HARMLESS = ("libnss_", "libgcc_s.")
"""Beginnings of the names of libraries that the C library loads when it needs them. They do nothing at the end of a process."""

WAITING = "rankdeck collectives"
"""The name of the thread that answers questions about collectives (`rankdeck/_collectives.py`): each rank with a group has it."""

LARGE = 4 << 20  # kilobytes of a process that may have too many objects for a list of them


class Shared:
    """State that ranks share with the template, and the end of ranks.

    Args:
        modules: names of the modules that were imported before the fork.
        libraries: paths of the shared libraries that torch and Python have loaded; they need not do anything at the process's end.
        is_last: no exit handler runs after `leave`.
    """

    def __init__(self, modules: Set[str], libraries: Set[str], *, is_last: bool) -> None:  # noqa: UP006
        self.modules, self.libraries, self._is_last = modules, libraries, is_last
        of_torch = getattr(sys.modules.get("torch"), "__file__", None) or __file__
        self._folders = (
            os.path.join(os.path.dirname(of_torch), ""),
            os.path.join(os.path.dirname(os.__file__), "lib-dynload", ""),
        )
        self._removals = postpone_removals()

    def leave(self, status: int) -> None:
        """Ends this process if that is safe; else returns, and the interpreter ends it, after `remove_operators`."""
        try:
            if not (self._is_last and self._may_leave()):
                return
        except BaseException:  # noqa: BLE001 - the program may have put anything in the place of streams
            return  # the interpreter reports it
        with contextlib.suppress(BaseException):  # of the program's objects
            internals.forget_exit_handlers()
            flush_files()  # a collection may close a file before its buffer is written
            groups = find_groups()  # noqa: F841 - keeps them
            reset_hooks()
            free_modules([name for name in list(sys.modules) if name not in self.modules or name == "__main__"])
            flush_files()
        for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
            with contextlib.suppress(BaseException):
                stream.flush()
        ctypes.PyDLL(None).fflush(None)
        os._exit(status)

    def remove_operators(self) -> None:
        """Removes the operators that `postpone_removals` has left. Reports an error through `sys.excepthook`, and goes on."""
        for one in reversed(self._removals):
            found = one.detach()  # after the exit handlers, a call of it does nothing
            if found is not None:
                _, act, arguments, named = found
                try:
                    act(*arguments, **(named or {}))
                except Exception:  # noqa: BLE001 - the program may have put anything in the place of torch's
                    sys.excepthook(*sys.exc_info())

    def _may_leave(self) -> bool:
        """Whether the interpreter would do nothing else at its end. Flushes the streams, which the interpreter also does first."""
        if getattr(sys, "last_type", None) is KeyboardInterrupt:  # the interpreter ends itself with the signal
            return False
        if has_threads():
            return False
        if is_large() or internals.has_pool() or not self._has_only_libraries_of_torch():
            return False
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        return True

    def _has_only_libraries_of_torch(self) -> bool:
        """Whether this process has only the libraries of Python and torch. Others may do something at the end of a process."""
        if "LD_PRELOAD" in os.environ or os.path.exists("/etc/ld.so.preload"):
            return False
        return all(
            path in self.libraries or path.startswith(self._folders) or os.path.basename(path).startswith(HARMLESS)
            for path in loaded_libraries()
        )


def postpone_removals() -> List[weakref.finalize]:  # type: ignore[type-arg]  # noqa: UP006
    """Takes from this process's exit handlers those that remove operators of `torch.library`. A rank that ends at once needs none of
    them, and they would copy 7,500 pages, in 25 ms.
    """
    found = internals.operator_removals()
    for one in found:
        one.atexit = False
    return found


def is_large() -> bool:
    """Whether this process has much memory of its own."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return any(line.startswith("RssAnon:") and int(line.split()[1]) > LARGE for line in file)


def loaded_libraries() -> Set[str]:  # noqa: UP006
    """Returns the paths of the shared libraries in this process."""
    with open(MAPS, encoding="utf-8", errors="surrogateescape") as file:
        rows = (line.rstrip("\n").split(None, 5) for line in file)
        return {row[5] for row in rows if len(row) == 6 and row[1][2] == "x" and row[5].startswith("/")}


def has_threads() -> bool:
    """Whether daemon threads live. The interpreter stops them, and they may hold any lock; ours only waits."""
    ours = {thread.ident for thread in threading.enumerate() if thread.name == WAITING}
    return not set(sys._current_frames()) <= {threading.get_ident(), *ours}


def find_groups() -> List[object]:  # noqa: UP006
    """Finds the process groups of the program, and the objects of torch that own one.

    The end of a group of gloo waits for a thread that may wait for the interpreter, which its caller has: the one of a
    DistributedDataParallel does (torch 2.13). A new interpreter aborts there.
    """
    module = sys.modules.get("torch._C._distributed_c10d")
    kinds = {id(kind) for kind in vars(module).values() if isinstance(kind, type)} if module else set()
    is_one: Dict[int, bool] = {}  # noqa: UP006
    found = []
    for thing in gc.get_objects() if kinds else ():
        for held in gc.get_referents(thing):
            kind = type(held)
            if id(kind) not in is_one:
                is_one[id(kind)] = not kinds.isdisjoint(map(id, kind.__mro__))
            if is_one[id(kind)]:
                found.append(held)
    return found


def reset_hooks() -> None:
    """Gives signals and streams back to the system, as the interpreter does before it frees modules."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    vars(sys).update(stdin=sys.__stdin__, stdout=sys.__stdout__, stderr=sys.__stderr__)
    vars(sys).update(dict.fromkeys(("last_type", "last_value", "last_traceback", "last_exc")))


class Mark:
    """Is freed with the names of a module. The module itself is freed earlier if functions keep its names alive."""

    def __init__(self, names: Dict[str, Any]) -> None:  # noqa: UP006
        self.names = names


def free_modules(names: List[str]) -> None:  # noqa: UP006
    """Frees modules as the interpreter does: first modules without other references, then the others, beginning with the newest."""
    marks = []
    for name in names:
        module = sys.modules.pop(name)
        if issubclass(type(module), ModuleType):
            # Not `module.__dict__`, which may load a module on its first use.
            mark = Mark(ModuleType.__getattribute__(module, "__dict__"))
            mark.names["__rankdeck_mark__"] = mark
            marks.append(weakref.ref(mark))
            del mark
        del module
    gc.collect()
    for reference in reversed(marks):
        left = reference()
        if left is not None:
            clear(left.names)
        del left
    gc.collect()


def clear(names: Dict[str, Any]) -> None:  # noqa: UP006
    """Frees the objects of a module. Names with one underscore come first."""
    for name in [name for name in names if name[:1] == "_" and name[1:2] != "_"]:
        names[name] = None
    for name in [name for name in names if name != "__builtins__"]:
        names[name] = None


def flush_files() -> None:
    """Writes what waits in the buffers of files that the program has not closed."""
    for thing in gc.get_objects():  # not those from before the fork, which are frozen
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):  # isinstance asks proxies
            with contextlib.suppress(BaseException):
                thing.flush()
