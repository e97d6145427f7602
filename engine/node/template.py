"""The template: a process that imports torch once and then forks the Python ranks of its node.

The agent runs it as a file, with the profile's Python and environment: `python -u template.py FD MODULE…`. FD is a socket of type
SOCK_SEQPACKET with messages in JSON, and descriptors; the modules are imported after torch (`preload.py`). One request at a time:

    agent -> template   {"argv", "env", "cwd", "stacks", "library", "cores"} with descriptors: stdout, stderr, and further
                        ones, which the program receives from number 3 on; or {"spares": n}, which is not answered
    template -> agent   {"importing": module} for each, {"left_out": [[module, reason], …]}; {"sources": [path, …]}; {"ready": version, "imports": [[module,
                        seconds], …]} or {"unfit": reason}, once; {"forked": pid, "start": …} or {"failed": reason} for each
                        request; {"ended": pid, "status": …} for each death

Forking a process of this size takes 5 ms and more, so "spares" pre-forks `n` processes for later requests.

A forked process continues as `python script.py` would: it returns to the end of this file, runs the script (`forked.py`), and ends
(`rank_end.py`). The template ends with the agent at the other end of the socket; its ranks stay, as children of the nearest subreaper. Standard
library only, besides the imports for ranks; Python 3.8 and later.
"""

# ruff: noqa: E402 - see LAST
from __future__ import annotations

import atexit

IS_FIRST = not atexit._ncallbacks()
"""Whether no exit handler was there before this file, as one of a debugger or of coverage."""

LAST: list = []  # type: ignore[type-arg]
"""Functions that a rank calls after all other exit handlers: their handler is registered before anything else is imported."""
atexit.register(lambda: [act() for act in LAST])

import array
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict

Request = Dict[str, Any]

WARM = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.serialization",
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    "multiprocessing.reduction",
    "rankdeck.elastic",
    "rankdeck.checkpoint",
)
"""Imports of a rank before its first step. Optimizers import `torch._dynamo` when the first one is created. The files of rankdeck
on a node have no bytecode: each rank would compile them."""

KEPT: list = []  # type: ignore[type-arg]
"""A table that torch keeps in a cache and frees when a group is made. To free it, each rank would copy 300 pages."""

INSTALLED = ("site-packages", "dist-packages")
"""Names of folders that change when a package is installed, upgraded or removed."""

Spares = Dict[int, socket.socket]
"""Pre-forked processes by pid, each with the socket for its request."""

MAX_MESSAGE = 1 << 20

MAX_SOURCES = 100
"""Paths in one message."""


def load_beside(name: str, folder: str) -> ModuleType:
    """Loads a file of the template's folder, which is not on the path of ranks."""
    spec = spec_from_file_location("rankdeck_" + name, os.path.join(folder, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from engine.node import forked, rank_end, titles
else:
    _folder = os.path.dirname(os.path.abspath(__file__))
    rank_end = load_beside("rank_end", _folder)
    forked = load_beside("forked", _folder)
    titles = load_beside("titles", _folder)


def show_role(shown: str) -> str:
    """Shows in `ps` that this process is the template, and of which run and node, unless it does. Returns these, from a file of the agent.

    `shown`: what it returned before.
    """
    with contextlib.suppress(OSError), open("title") as file:
        about = file.read()
        if about != shown:
            titles.show_title("template", about)
        return about
    return shown


def warm() -> str:
    """Imports what every rank needs. Returns why ranks can't be forked from this process; empty if they can."""
    gc.disable()  # collections take a quarter of the time to import torch, and find nothing
    for name in WARM:
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001, PERF203 - any module may raise anything
            if name == "torch":
                return f"torch can't be imported: {error}"
    import torch

    if not hasattr(
        torch, "_import_device_backends"
    ):  # before 2.5, torch does not call the entry point that ranks have for this
        with contextlib.suppress(ImportError):
            __import__("rankdeck._autoload")
            sys.modules["rankdeck._autoload"].register()
    with contextlib.suppress(Exception):
        KEPT.append(sys.modules["torch._dynamo.trace_rules"].get_torch_obj_rule_map())
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
        environment: Environment of this process when it started.
        library: the folder on PYTHONPATH, relative to the working directory, with which it may have moved.

    Returns:
        `preload.Imports`.
    """
    here = os.path.dirname(os.path.abspath(library))
    judge = load_beside("preload", here)
    before = set(sys.modules)
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
    tell_sources(wire, judge.sources_of(before))
    return imports


def tell_sources(wire: socket.socket, paths: list[str]) -> None:
    """Tells which files and folders decide what imports find."""
    while paths:
        say(wire, {"sources": paths[:MAX_SOURCES]})
        paths = paths[MAX_SOURCES:]


def serve(wire: socket.socket, library: str, modules: list[str]) -> tuple[Request, list[int]] | None:
    """Forks a process for each request.

    Returns:
        In a forked process its request and descriptors; in the template None, when the agent has gone.
    """
    wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    plain = titles.short_name()
    show_role("")
    environment, moved_library = dict(os.environ), os.path.relpath(library)
    begin = time.monotonic()
    reason, imported, changes = warm(), [("torch", time.monotonic() - begin)], {}
    libraries = rank_end.loaded_libraries()
    tell_sources(wire, [entry for entry in sys.path if os.path.basename(entry) in INSTALLED])
    if modules and not reason:
        imports = preload(wire, modules, environment, moved_library)
        imported, changes = imported + imports.seconds, imports.changes
    shared, moving = rank_end.Shared(set(sys.modules), libraries, is_last=IS_FIRST), forked.modules_below(library)
    if "rankdeck._imports" in sys.modules:
        sys.modules["rankdeck._imports"].note_template()
    reason = reason or settle()
    named = titles.short_name()
    plain, shown = plain if named.startswith("rankdeck") else named, show_role("")
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
            shown = show_role(shown)  # a launch may have taken the standby that this process was forked for
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
                request.update(
                    old_library=library,
                    moving=moving,
                    exec_env=environment,
                    changes=changes,
                    shared=shared,
                    last=LAST,
                    show=functools.partial(titles.show_command, short=plain),
                )
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
        say(wire, {"forked": pid, "start": forked.start_time(pid)})
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
            note = f"{pid} {forked.start_time(pid)} {status} {time.time()}\n"
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
    forked.run(request, descriptors)


if __name__ == "__main__":
    main()
