"""A process that the template has forked: it becomes what `python script.py` would be, and runs the program.

`template.py` loads this file from its folder, before it forks. Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import os
import signal
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, NoReturn

if TYPE_CHECKING or __name__.startswith("engine."):  # else `template.py` has put it here
    from engine.node import internals

Request = Dict[str, Any]
STACKS_SIGNAL = signal.SIGRTMIN + 9  # makes a rank write its stacks; scripts use SIGUSR1 and SIGUSR2


def run(request: Request, descriptors: list[int]) -> None:
    """Runs the program of a request. Returns when it has ended; the interpreter exits next.

    Args:
        request: Request of the agent, completed by the template.
        descriptors: stdout, stderr, and what the program receives from number 3 on.

    Raises:
        SystemExit, KeyboardInterrupt: as the program ends.
    """
    try:
        become(request, descriptors)
    except OSError as error:
        sys.stderr.write(f"rankdeck: can't start: {error}\n")
        sys.stderr.flush()
        os._exit(126)
    try:
        run_program(request["argv"][2:])
        request["status"] = 0
    except SystemExit as error:
        request["status"] = status_of(error)
        raise
    except BaseException as error:  # noqa: BLE001 - the interpreter would catch it here
        request["status"] = 1
        try:
            end_badly(error)
        except SystemExit as other:  # of the program's hook
            request["status"] = status_of(other)
            raise


def become(request: Request, descriptors: list[int]) -> None:
    """Turns a forked process into what `python script.py` would be: session, files, environment, random state."""
    os.setsid()
    request["last"].append(functools.partial(end, request, os.getpid()))
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for target, descriptor in enumerate(moved, 1):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()  # imports may have set variables
    os.environ.update(request["exec_env"])
    os.environ.update(request["env"])
    for name, value in request["changes"].items():  # by modules of the profile, which a rank would have imported itself
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for name in request.get("unset", ()):
        os.environ.pop(name, None)
    if request.get("cores"):
        os.sched_setaffinity(0, request["cores"])
    os.chdir(request["cwd"])
    sys.argv = list(request["argv"][2:])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(request["argv"])  # novermin: Python 3.10
    sys.path[:] = [request["library"] if entry == request["old_library"] else entry for entry in sys.path]
    move_modules(request["moving"], request["old_library"], request["library"])
    renew_state()
    request["show"](request["argv"])
    watch_for_stacks(request["stacks"])
    if "rankdeck._output" in sys.modules:  # it was imported when this process was no rank yet
        sys.modules["rankdeck._output"].outlive_full_disks()
    if os.environ.get("RANK") == "0" and "rankdeck._imports" in sys.modules:
        sys.modules["rankdeck._imports"].time_imports()


def end(request: Request, rank: int) -> None:
    """Ends this process after all exit handlers. `request`: with the status of the program, if it has one. `rank`: the pid of the rank. A process
    that it has forked comes here too."""
    if "status" in request and os.getpid() == rank:
        request["shared"].leave(request["status"])
    request["shared"].remove_operators()
    if "triton" in sys.modules:
        gc.unfreeze()  # nanobind of triton 3.9 reports objects that are frozen at the interpreter's end as leaks, in 27 lines


def status_of(error: SystemExit) -> int:
    """Returns the exit status that the interpreter makes of this exception."""
    if not isinstance(error.code, int):
        return int(error.code is not None)
    return error.code & 255 if -(2**63) <= error.code < 2**63 else 255


def modules_below(folder: str) -> list[ModuleType]:
    """Returns the modules that were imported from a folder. A module that is loaded on its first use is not loaded for this."""

    def file_of(module: ModuleType) -> object:
        return ModuleType.__getattribute__(module, "__dict__").get("__file__")

    modules = [one for one in list(sys.modules.values()) if issubclass(type(one), ModuleType)]
    return [one for one in modules if str(file_of(one)).startswith(folder + os.sep)]


def move_modules(modules: list[ModuleType], old: str, new: str) -> None:
    """Updates the paths of modules that were imported from a folder which has moved. `modules`: Modules of this folder, as the template
    found them. Looking at all modules here would copy 3,000 pages, in 9 ms. `old`, `new`: the folder before and after."""
    for module in modules if old != new else ():
        names: Any = module.__dict__
        if "__path__" in names:
            names["__path__"][:] = [new + place[len(old) :] for place in names["__path__"]]
        names["__file__"] = new + names["__file__"][len(old) :]
        names["__spec__"].origin = names["__file__"]
        names["__spec__"].loader.path = names["__file__"]  # tracebacks read the source through it


def renew_state() -> None:
    """Sets seeds and other state that differs between processes. `random` and `tempfile` do so themselves after a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        processes.current_process().authkey = os.urandom(32)


def watch_for_stacks(path: str) -> None:
    """Makes a signal append every thread's stack to a file, even while Python or torch are busy. Without the file, the rank starts too."""
    if not path:
        return
    import faulthandler
    import stat

    with contextlib.suppress(OSError):
        # O_NONBLOCK, because anything may be in the place of the file: a pipe without a reader would block.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(file).st_mode):
            faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        else:
            os.close(file)


def run_program(argv: list[str]) -> None:
    """Runs `argv`, a script or `-m` and a module, as `__main__`."""
    import types

    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    safe = getattr(sys.flags, "safe_path", False)
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        if not safe:
            sys.path.insert(0, os.getcwd())
        internals.main_runner()(argv[1])
        return
    from importlib.machinery import SourceFileLoader

    path = os.path.join(os.getcwd(), argv[0])
    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def end_badly(error: BaseException) -> NoReturn:
    """Reports an uncaught exception as the interpreter would, without the frames of this file, and exits like it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    sys.exit(1)


def start_time(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot. It distinguishes processes with the same pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0
