"""Imports further modules in a template, and judges whether ranks may be forked from what an import leaves.

A module that ranks import themselves runs in each of them, with its rank in the environment and threads of its own. A forked rank gets
only what one import in the template has left. So a module is not kept if its import

- fails, starts a process, or starts a thread that does not end for a fork,
- looks at CUDA, which a fork can't use any more,
- reads variables that differ between ranks, or copies the whole environment,
- registers a fork handler that fails, or an exit handler that fails, does not end, or changes something outside its process.

Handlers are tried in a fork in which audit events stop every change. `template.py` loads this file if there is something to import.
Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING or __name__.startswith("engine."):  # else `template.py` has put it here
    from engine.node import internals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Handler = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANK_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "RANKDECK_", "OMPI_", "PMI_", "PMIX_", "MPI_", "HYDI_")
"""Environment variables that ranks get one by one."""

TRIAL_TIME = 20.0  # seconds that exit handlers have
LISTED_TIME = 1.0  # seconds in which a thread that has ended leaves the list of its process

CHANGES = (
    "os.remove", "os.rmdir", "os.rename", "os.truncate", "os.mkdir", "os.link", "os.symlink", "os.chmod", "shutil.",
    "os.kill", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.", "signal.pthread_kill", "socket.connect",
    "socket.send",
)  # fmt: skip
"""Beginnings of audit events that other processes notice."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Imports(NamedTuple):
    """The result of the imports.

    `seconds`: import time of each module that is kept; `refused`: modules and why they are not kept; `is_spoilt`: a refused module has left
    something in this process; `changes`: environment variables that imports have set, or removed (None).
    """

    seconds: list[tuple[str, float]]
    refused: list[tuple[str, str]]
    is_spoilt: bool
    changes: dict[str, str | None]


def import_all(names: list[str], started: Callable[[str], None]) -> Imports:
    """Imports modules one after the other. `started`: called with each name before its import, which may end the process."""
    before = dict(os.environ)
    imports = Imports([], [], False, {})
    for name in names:
        started(name)
        begin = time.monotonic()
        is_missing, reason = _import(name)
        if reason:
            imports.refused.append((name, reason))
            imports = imports._replace(is_spoilt=imports.is_spoilt or not is_missing)
        else:
            imports.seconds.append((name, time.monotonic() - begin))
    after = dict(os.environ)
    changes = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
    return imports._replace(changes=changes)


def _import(name: str) -> tuple[bool, str]:
    """Imports one module. Returns whether there is no such module, and why it can't be kept; empty if it can."""
    handlers: list[Handler] = []
    threads, children = _threads(), _has_children()
    finalizers, register = internals.finalizers(), atexit.register

    def record(function: Callable[..., object], *args: Any, **options: Any) -> Callable[..., object]:
        handlers.append((function, args, options))
        return register(function, *args, **options)

    atexit.register = record  # type: ignore[assignment]
    _reads.clear()
    try:
        with record_reads():
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        return error.name == name.partition(".")[0], f"can't be imported: {error}"
    except BaseException as error:  # noqa: BLE001 - any module may raise anything
        return False, f"can't be imported: {_first_line(error)}"
    finally:
        atexit.register = register
    for finalizer, about in internals.finalizers().items():
        if finalizer not in finalizers and about.atexit:
            handlers.append((about.func, about.args, about.kwargs or {}))
    reason = _reads_of_ranks() or ("starts a process" if _has_children() and not children else "") or _try(handlers)
    # After a fork: libraries that support forking end their threads for it.
    return False, reason or ("starts a thread" if _has_more_threads(threads) else "")


def sources_of(before: set[str]) -> list[str]:
    """The files of modules, without those that were imported before. If one of them changes, a new process would import something else.
    rankdeck's own are left out: they never change, and their folder moves.
    """
    names = [name for name in sys.modules if name not in before and name.partition(".")[0] != "rankdeck"]
    modules = [sys.modules.get(name) for name in names]
    files = [getattr(module, "__dict__", {}).get("__file__") for module in modules]
    return sorted({os.path.abspath(path) for path in files if isinstance(path, str)})


# --- the environment ------------------------------------------------------------------------------------------------------

_reads: set[str] = set()  # names that an import has read or set; `*`: all
READ: set[str] = set()  # names that any import has read, since the first call of `record_reads`


class _Recording(type(os.environ)):  # type: ignore[misc]
    """`os.environ` while a module is imported. The object stays the same, so that modules may keep it."""

    def __getitem__(self, key: str) -> str:
        _reads.add(key)
        READ.add(key)
        value: str = super().__getitem__(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        _reads.add(key)
        super().__setitem__(key, value)

    def __iter__(self) -> Any:
        _reads.add("*")
        return super().__iter__()


@contextlib.contextmanager
def record_reads() -> Iterator[None]:
    """Notes in READ which variables are read."""
    kind = type(os.environ)
    os.environ.__class__ = _Recording
    try:
        yield
    finally:
        os.environ.__class__ = kind


def _reads_of_ranks() -> str:
    if "*" in _reads:
        return "copies the environment, in which each rank has its own variables"
    names = sorted(name for name in map(str, _reads) if name in RANK_NAMES or name.startswith(RANK_PREFIXES))
    return f"reads {', '.join(names[:3])} from the environment, and each rank has its own" if names else ""


# --- processes and threads ------------------------------------------------------------------------------------------------


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _has_more_threads(before: int) -> bool:
    """Whether this process keeps more threads than before. A thread that was joined may be listed a little longer."""
    end = time.monotonic() + LISTED_TIME
    while _threads() > before:
        if time.monotonic() > end:
            return True
        time.sleep(0.001)
    return False


# --- handlers -------------------------------------------------------------------------------------------------------------


def _try(handlers: list[Handler]) -> str:
    """Forks, as for a rank, and runs exit handlers there. Returns the problem with the fork or with them."""
    failures: list[str] = []
    hook = sys.unraisablehook
    sys.unraisablehook = lambda failure: failures.append(_first_line(failure.exc_value))
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        _judge_fork(handlers, failures, into)
    sys.unraisablehook = hook
    os.close(into)
    is_over = bool(select.select([out], [], [], TRIAL_TIME)[0])
    said = os.read(out, 4096).decode(errors="replace") if is_over else ""
    os.close(out)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if failures:
        return f"has a fork handler that fails: {failures[0]}"
    if not is_over:
        return "has an exit handler that does not end"
    return said[1:] if said else "ends the processes that are forked after it"


def _judge_fork(handlers: list[Handler], failures: list[str], into: int) -> NoReturn:
    """Runs in the fork: writes a dot, which shows that the import has ended, and then the problem."""
    try:
        torch = sys.modules.get("torch")
        if failures:
            reason = f"has a fork handler that fails: {failures[0]}"
        elif torch is not None and (torch.cuda.is_initialized() or internals.is_in_bad_fork(torch)):
            reason = "initialises CUDA, which a fork can't use"
        else:
            reason = _try_exit(handlers)
        os.write(into, f".{reason}".encode(errors="replace")[:4096])
    finally:
        os._exit(0)


def _try_exit(handlers: list[Handler]) -> str:
    changes: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        is_writing = event == "open" and isinstance(args[2], int) and args[2] & WRITING and args[0] != os.devnull
        if is_writing or event.startswith(CHANGES):
            changes.append(event)
            raise RuntimeError("rankdeck tries this handler")

    sys.dont_write_bytecode = True
    sys.addaudithook(watch)
    for function, args, options in reversed(handlers):
        failure = ""
        try:
            function(*args, **options)
        except BaseException as error:  # noqa: BLE001
            failure = _first_line(error)
        if changes:
            return f"has an exit handler that would act for each rank ({changes[0]})"
        if failure:
            return f"has an exit handler that fails: {failure}"
    return ""


def _first_line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
