"""The template: a process that imports torch once and then forks the Python ranks of its node.

The agent runs it as a file, with the profile's Python and environment: `python -u template.py FD MODULE…`. FD is a socket of type
SOCK_SEQPACKET with messages in JSON, and descriptors; the modules are imported after torch (`preload.py`). Or a template of the user,
which has imported torch for any number of runs, forks it (`user_template.py`). One request at a time:

    agent -> template   {"argv", "env", "cwd", "stacks", "library", "cores"} with descriptors: stdout, stderr, and further
                        ones, which the program receives from number 3 on; or {"spares": n}, which is not answered
    template -> agent   {"importing": module} for each, {"left_out": [[module, reason], …]}; {"sources": [path, …]}; {"ready": version, "imports": [[module,
                        seconds], …], "earlier"} or {"unfit": reason}, once; {"forked": pid, "start": …} or {"failed": reason} for each
                        request; {"ended": pid, "status": …} for each death

Forking a process of this size takes 5 ms and more, so "spares" pre-forks `n` processes for later requests.

A forked process continues as `python script.py` would: it returns to the end of this file, runs the script (`forked.py`), and ends
(`rank_end.py`). If the agent dies, the template goes on as long as it has children: it reaps its ranks, and writes down how they end. It
takes their orphans. Standard library only, besides the imports for ranks; Python 3.8 and later.
"""

# ruff: noqa: E402 - see LAST
from __future__ import annotations

import atexit

IS_FIRST = not atexit._ncallbacks()  # noqa: SLF001 - `internals` comes later
"""Whether no exit handler was there before this file, as one of a debugger or of coverage."""

LAST: list = []  # type: ignore[type-arg]
"""Functions that a rank calls after all other exit handlers: their handler is registered before anything else is imported."""
atexit.register(lambda: [act() for act in LAST])

import array
import contextlib
import ctypes
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

INSTALLED = ("site-packages", "dist-packages")  # folders that change with an installed package
Spares = Dict[int, socket.socket]  # pre-forked processes by pid, each with the socket for its request
MAX_MESSAGE = 1 << 20

ENDING = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that systemd and schedulers send to all processes before they end them. The template outlives them with its ranks."""

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
MAX_SOURCES = 100  # paths in one message


def load_beside(name: str, folder: str) -> ModuleType:
    """Loads a file of the template's folder, which is not on the path of ranks. It gets `internals`, if that is loaded."""
    spec = spec_from_file_location("rankdeck_" + name, os.path.join(folder, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    vars(module)["internals"] = globals().get("internals")
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from engine.node import forked, internals, rank_end, titles
else:
    _folder = os.path.dirname(os.path.abspath(__file__))
    internals = load_beside("internals", _folder)
    rank_end = load_beside("rank_end", _folder)
    forked = load_beside("forked", _folder)
    titles = load_beside("titles", _folder)


class Imports:
    """The imports of this process, and what they mean for processes that are forked from it. `library`: the folder from which rankdeck is
    imported."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.plain = titles.short_name()
        self.changes: Request = {}
        """Environment variables that modules of the profile have set, or removed (None)."""
        begin = time.monotonic()
        self.unfit = warm()
        """Why this process can't be forked; empty: it can."""
        self.seconds = [("torch", time.monotonic() - begin)]
        self.are_earlier = False
        """Whether they had ended when a run asked for its template."""
        self._libraries = rank_end.loaded_libraries()

    def add(self, imports: Any) -> None:
        """Adds `preload.Imports`."""
        self.seconds, self.changes = self.seconds + imports.seconds, {**self.changes, **imports.changes}

    def settle(self) -> None:
        """Prepares this process for forks, after its last import."""
        self.shared = rank_end.Shared(set(sys.modules), self._libraries, is_last=IS_FIRST)
        self.moving = forked.modules_below(self.library)
        if "rankdeck._imports" in sys.modules:
            sys.modules["rankdeck._imports"].note_template()
        self.unfit = self.unfit or settle()
        named = titles.short_name()
        self.plain = self.plain if named.startswith("rankdeck") else named


def show_role(shown: str) -> str:
    """Shows in `ps` that this process is the template of a run and node, which a file of the agent names. Returns their names.

    `shown`: the result of the call before.
    """
    with contextlib.suppress(OSError), open("title") as file:
        about = file.read()
        if about != shown:
            titles.show_title("template", about)
        return about
    return shown


def become_subreaper() -> None:
    """Makes orphans below this process its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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

    if not internals.calls_entry_points(torch):
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


def preload(
    wire: socket.socket, modules: list[str], environment: dict[str, str], library: str, earlier: list[str]
) -> Any:
    """Imports the modules of the profile. If one may not be kept that was imported, this process begins again without it.

    Args:
        wire: to the agent.
        environment: Environment of this process when it started.
        library: the folder on PYTHONPATH, relative to the working directory, with which it may have moved.
        earlier: Modules that the template of the user has imported.

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
        kept = earlier + [name for name, _ in imports.seconds]
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


def serve_own(wire: socket.socket, library: str, modules: list[str]) -> tuple[Request, list[int]] | None:
    """Is the template of a run that no template of the user has forked. `library`: the folder on PYTHONPATH. `modules`: names of modules
    that the profile imports after torch. Returns as `serve`."""
    show_role("")
    environment, moved_library = dict(os.environ), os.path.relpath(library)
    imports = Imports(library)
    tell_sources(wire, [entry for entry in sys.path if os.path.basename(entry) in INSTALLED])
    if modules and not imports.unfit:
        imports.add(preload(wire, modules, environment, moved_library, []))
    imports.settle()
    return serve(wire, imports, environment)


def serve(wire: socket.socket, imports: Imports, environment: dict[str, str]) -> tuple[Request, list[int]] | None:
    """Forks a process for each request. `environment`: variables of each process, unless its request changes them. Returns in a forked
    process its request and descriptors; in the template None, when the agent and all children have gone."""
    become_subreaper()
    wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in ENDING:
        signal.signal(number, lambda number, frame: None)
    shown = show_role("")
    version = getattr(sys.modules.get("torch"), "__version__", "")
    say(
        wire,
        {"unfit": imports.unfit}
        if imports.unfit
        else {"ready": version, "imports": imports.seconds, "earlier": imports.are_earlier},
    )
    spares: Spares = {}
    ranks: set[int] = set()
    has_agent = True
    waiting = select.poll()  # `select.select` refuses descriptors from 1,024 on, which the agent may hand on
    waiting.register(wake, select.POLLIN)
    waiting.register(wire, select.POLLIN)
    while True:
        for ready, _ in waiting.poll():
            if ready == wake:
                os.read(wake, 4096)
                if not bury(wire, spares, ranks) and not has_agent:
                    return None
                continue
            data, descriptors = receive(wire)
            if not data:
                has_agent = False
                waiting.unregister(wire)
                while spares:
                    spares.popitem()[1].close()
                os.write(wake_in, b"\0")
                continue
            request: Request = json.loads(data)
            shown = show_role(shown)  # a launch may have taken the standby that this process was forked for
            own = fork_spares(request["spares"], spares) if "spares" in request else None
            pid = -1 if "spares" in request else start_rank(wire, data, descriptors, spares)
            if own is not None or pid == 0:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, *ENDING):
                    signal.signal(number, signal.SIG_DFL)
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
                    old_library=imports.library,
                    moving=imports.moving,
                    exec_env=environment,
                    changes=imports.changes,
                    shared=imports.shared,
                    last=LAST,
                    show=functools.partial(titles.show_command, short=imports.plain),
                )
                return request, descriptors
            ranks.update({pid} - {-1})
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
    """Passes a request to a pre-forked process, or forks one, and reports it to the agent. Returns the pid; 0 in a process that was forked
    here; -1 if forking failed."""
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


def bury(wire: socket.socket, spares: Spares, ranks: set[int]) -> bool:
    """Reaps ended processes. If it is a rank, first kills its group, and records its status in a file in case the agent is gone. `ranks`:
    Processes that were forked for a request; other children are orphans of ranks, or spares. Returns whether there are children left."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return False
        if found is None:
            return True
        pid = found.si_pid
        if pid in ranks:
            status = note_end(found)
            os.waitpid(pid, 0)
            ranks.discard(pid)
            say(wire, {"ended": pid, "status": status})
            continue
        if pid in spares:
            spares.pop(pid).close()
        os.waitpid(pid, 0)


def note_end(found: Any, folder: int | None = None) -> int:
    """Records how a rank has ended that is not reaped yet, and kills its group. Returns its status. `found`: of `os.waitid`. `folder`:
    descriptor of the run's folder on this node; None: the working directory."""
    status: int = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    with contextlib.suppress(OSError):  # a full disk
        note = f"{found.si_pid} {forked.start_time(found.si_pid)} {status} {time.time()}\n"
        with open("exits", "a", opener=lambda path, flags: os.open(path, flags, 0o600, dir_fd=folder)) as file:
            file.write(note)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(found.si_pid, signal.SIGKILL)
    return status


def say(wire: socket.socket, message: Request) -> None:
    with contextlib.suppress(OSError):  # the agent has gone, which `serve` notices next
        wire.send(json.dumps(message).encode())


def receive(wire: socket.socket) -> tuple[bytes, list[int]]:
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
    words, library = sys.argv[1:], os.path.join(own_folder, "python")
    del sys.argv[1:]
    if words[0] == "user":
        shared: Any = load_beside("user_template", own_folder)
        job = shared.serve(sys.modules[__name__], library, words)
    else:
        wire = socket.socket(fileno=int(words[0]))
        os.set_inheritable(wire.fileno(), False)
        job = serve_own(wire, library, words[1:])
    if job is None:
        os._exit(0)
    request, descriptors = job
    forked.run(request, descriptors)


if __name__ == "__main__":
    main()
