"""The template: a process that imports torch once and then forks the Python ranks of its node.

The agent runs it as a file, with the profile's Python and environment: `python -u template.py FD MODULE…`. FD is a socket of type
SOCK_SEQPACKET with messages in JSON, and descriptors; the modules are imported after torch (`preload.py`). One request at a time:

    agent -> template   {"argv", "env", "cwd", "stacks", "library", "cores"} with descriptors: stdout, stderr, and further
                        ones, which the program receives from number 3 on; or {"spares": n}, which is not answered
    template -> agent   {"importing": module} for each, {"left_out": [[module, reason], …]}; {"ready": version, "imports": [[module,
                        seconds], …]} or {"unfit": reason}, once; {"forked": pid, "start": …} or {"failed": reason} for each
                        request; {"ended": pid, "status": …} for each death

Forking a process of this size takes 5 ms and more, so "spares" pre-forks `n` processes for later requests.

A forked process continues as `python script.py` would: it returns to the top of this file, runs the script, and lets the interpreter
exit. The template ends with the agent at the other end of the socket; its ranks stay, as children of the nearest subreaper. Standard
library only, besides the imports for ranks; Python 3.8 and later.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, NoReturn  # noqa: UP035

Request = Dict[str, Any]  # noqa: UP006 - evaluated at import, by Python 3.8 too

WARM = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.serialization",
    "torch._dynamo",
    "multiprocessing.reduction",
    "rankdeck.elastic",
    "rankdeck.checkpoint",
)
"""Imports of a rank before its first step. Optimizers import `torch._dynamo` when the first one is created. The files of rankdeck
on a node have no bytecode: each rank would compile them."""

Spares = Dict[int, socket.socket]  # noqa: UP006
"""Pre-forked processes by pid, each with the socket for its request."""

MAX_MESSAGE = 1 << 20
STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Makes a rank write its Python stacks. A real-time signal, because training scripts use SIGUSR1 and SIGUSR2."""


# --- in the template -------------------------------------------------------------------------------------------------


def warm() -> str:
    """Imports what every rank needs. Returns why ranks can't be forked from this process; empty if they can."""
    gc.disable()  # collections take a quarter of the time to import torch, and find nothing
    for name in WARM:
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001 - any module may raise anything
            if name == "torch":
                return f"torch can't be imported: {error}"
    import torch

    return "CUDA was initialised by an import" if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]


def settle() -> str:
    """Prepares this process for forks after its imports. Returns why it can't be forked; empty if it can."""
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a rank would copy shared memory
    if os.fork() == 0:  # libraries that support forking end their threads before it: OpenBLAS does
        os._exit(0)
    os.wait()
    threads = len(os.listdir("/proc/self/task"))
    return f"{threads - 1} threads run after the imports" if threads > 1 else ""


def preload(wire: socket.socket, modules: list[str], environment: dict[str, str], library: str) -> Any:
    """Imports the modules of the profile. If one may not be kept that was imported, this process begins again without it.

    Args:
        wire: to the agent.
        modules: their names.
        environment: of this process when it started.
        library: the folder on PYTHONPATH, relative to the working directory, with which it may have moved.

    Returns:
        `preload.Imports`.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    here = os.path.dirname(os.path.abspath(library))
    spec = spec_from_file_location("rankdeck_preload", os.path.join(here, "preload.py"))
    assert spec is not None
    assert spec.loader is not None
    judge = module_from_spec(spec)
    spec.loader.exec_module(judge)
    imports = judge.import_all(modules, lambda name: say(wire, {"importing": name}))
    if imports.refused:
        say(wire, {"left_out": imports.refused})
    if imports.is_spoilt:
        os.set_inheritable(wire.fileno(), True)
        kept = [name for name, _ in imports.seconds]
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join([os.path.abspath(library), *paths[1:]])
        argv = [sys.executable, "-u", os.path.join(here, "template.py"), str(wire.fileno()), *kept]
        os.execve(sys.executable, argv, environment)
    return imports


def serve(wire: socket.socket, library: str, modules: list[str]) -> tuple[Request, list[int]] | None:
    """Forks a process for each request.

    Returns:
        In a forked process its request and descriptors; in the template None, when the agent has gone.
    """
    wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    environment, moved_library = dict(os.environ), os.path.relpath(library)
    begin = time.monotonic()
    reason, imported, changes = warm(), [("torch", time.monotonic() - begin)], {}
    if modules and not reason:
        imports = preload(wire, modules, environment, moved_library)
        imported, changes = imported + imports.seconds, imports.changes
    reason = reason or settle()
    version = getattr(sys.modules.get("torch"), "__version__", "")
    say(wire, {"unfit": reason} if reason else {"ready": version, "imports": imported})
    spares: Spares = {}
    while True:
        for ready in select.select([wire.fileno(), wake], [], [])[0]:
            if ready == wake:
                os.read(wake, 4096)
                bury(wire, spares)
                continue
            data, descriptors = receive(wire)
            if not data:
                return None
            request: Request = json.loads(data)
            own = fork_spares(request["spares"], spares) if "spares" in request else None
            if own is not None or ("spares" not in request and start_rank(wire, data, descriptors, spares) == 0):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(wake)
                os.close(wake_in)
                wire.close()
                for other in spares.values():
                    other.close()
                if own is not None:
                    data, descriptors = receive(own)
                    own.close()
                    if not data:
                        os._exit(0)  # the template has gone
                    request = json.loads(data)
                request.update(old_library=library, exec_env=environment, changes=changes)
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)


def fork_spares(count: int, spares: Spares) -> socket.socket | None:
    """Pre-forks processes until `count` wait. Returns None, or in such a process the socket for its request."""
    while len(spares) < count:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:  # no memory or processes left: a request for a rank will report it
            pid = -1
        if pid == 0:
            ours.close()
            return theirs
        theirs.close()
        if pid < 0:
            ours.close()
            break
        spares[pid] = ours
    return None


def start_rank(wire: socket.socket, request: bytes, descriptors: list[int], spares: Spares) -> int:
    """Passes a request to a pre-forked process, or forks one, and reports it to the agent.

    Returns:
        The pid; 0 in a process that was forked here; -1 if forking failed.
    """
    pid = 0
    while spares and not pid:
        pid, theirs = spares.popitem()
        with theirs:
            try:
                theirs.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
            except OSError:  # it was killed
                pid = 0
    if not pid:
        try:
            pid = os.fork()
        except OSError as error:
            say(wire, {"failed": str(error)})
            return -1
    if pid:
        say(wire, {"forked": pid, "start": start_time(pid)})
    return pid


def bury(wire: socket.socket, spares: Spares) -> None:
    """Reaps ended processes. First kills their groups, and records their status in a file in case the agent is gone."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return
        if found is None:
            return
        pid = found.si_pid
        if pid in spares:
            spares.pop(pid).close()
            os.waitpid(pid, 0)
            continue
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(OSError):  # a full disk
            note = f"{pid} {start_time(pid)} {status} {time.time()}\n"
            with open("exits", "a") as file:
                file.write(note)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        say(wire, {"ended": pid, "status": status})


def say(wire: socket.socket, message: Request) -> None:
    with contextlib.suppress(OSError):  # the agent has gone, which `serve` notices next
        wire.send(json.dumps(message).encode())


def receive(wire: socket.socket) -> tuple[bytes, list[int]]:
    """Receives one message and its descriptors."""
    room = array.array("i")
    try:
        data, extra, _, _ = wire.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(8 * room.itemsize), socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return b"", []
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            room.frombytes(content[: len(content) - len(content) % room.itemsize])
    return data, list(room)


def start_time(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot. It distinguishes processes with the same pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


# --- in a rank -------------------------------------------------------------------------------------------------------


def become(request: Request, descriptors: list[int]) -> None:
    """Turns a forked process into what `python script.py` would be: session, files, environment, random state."""
    os.setsid()
    atexit.register(note_end, os.path.abspath("exits"), request)
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
        sys.orig_argv = list(request["argv"])
    sys.path[:] = [request["library"] if entry == request["old_library"] else entry for entry in sys.path]
    move_packages(request["old_library"], request["library"])
    renew_state()
    show_command(request["argv"])
    watch_for_stacks(request["stacks"])
    if "rankdeck._output" in sys.modules:  # it was imported when this process was no rank yet
        sys.modules["rankdeck._output"].outlive_full_disks()


def note_end(path: str, request: Request) -> None:
    """Records, as the last that this process does, how it ends: its parent and the agent may have been killed."""
    if "status" in request:
        note = f"{os.getpid()} {start_time(os.getpid())} {request['status']} {time.time()} itself\n"
        with contextlib.suppress(OSError), open(path, "a") as file:
            file.write(note)


def status_of(error: SystemExit) -> int:
    """Returns the exit status that the interpreter makes of this exception."""
    return error.code & 255 if isinstance(error.code, int) else int(error.code is not None)


def move_packages(old: str, new: str) -> None:
    """Updates the paths of modules that were imported from a folder which has moved."""
    if old == new:
        return

    def moved(place: str) -> str:
        return new + place[len(old) :] if place.startswith(old + os.sep) else place

    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if isinstance(names.get("__path__"), list):
            names["__path__"][:] = map(moved, names["__path__"])
        if isinstance(names.get("__file__"), str) and names["__file__"].startswith(old + os.sep):
            names["__file__"] = moved(names["__file__"])
            spec: Any = names.get("__spec__")
            spec.origin = names["__file__"]
            spec.loader.path = names["__file__"]  # tracebacks read the source through it


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


def show_command(argv: list[str]) -> None:
    """Makes `ps` show the rank's command instead of the template's, cut to the template's length."""
    with contextlib.suppress(Exception):  # nothing depends on it
        with open("/proc/self/stat", "rb") as file:
            begin, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])
        words = b"\0".join(map(os.fsencode, argv))[: end - begin - 1]
        ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)


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
        import runpy

        sys.argv = ["-m", *argv[2:]]
        if not safe:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # the interpreter calls the same function
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


def main() -> None:
    """Serves as the template; in each forked process, runs a rank's program."""
    is_on_path = sys.path and not getattr(sys.flags, "safe_path", False)
    own_folder = sys.path.pop(0) if is_on_path else os.path.dirname(os.path.abspath(__file__))
    wire, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    os.set_inheritable(wire.fileno(), False)
    del sys.argv[1:]
    job = serve(wire, os.path.join(own_folder, "python"), modules)
    if job is None:
        os._exit(0)  # its ranks continue, as children of the nearest subreaper
    request, descriptors = job
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
        end_badly(error)


if __name__ == "__main__":
    main()
