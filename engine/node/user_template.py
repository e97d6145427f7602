"""The template of a user: it has imported torch, and forks a template of the run for each run that asks it, as long as it has the right
environment.

A supervisor starts it, `python -u template.py user TERMS`, in a session of its own: Linux gives orphans only to ancestors, so a
process that outlives a run must not be below its agent. TERMS is JSON: {"folder", "listener", "lock", "modules", "refused", "linger"}:
its private folder, two descriptors, the modules of the profile, those that it could not keep, and seconds. Whoever connects to the
listener, of type SOCK_SEQPACKET, sends one request, with the descriptors of a log and of a working directory:

    agent -> template of the user   {"env", "library", "linger", "at", "limits", "umask", "cores"}
    template of the user -> agent   {"unlike": reason}: the request is not served

A process that is forked for a request has the connection: it says {"template": pid, "start", "owner": [pid, start]} and goes on as
`template.py` describes. While torch is imported, connections wait. This process imports installed packages only; the one that is forked
imports the rest of the profile's modules.

It ends after an idle time, if memory is short, at SIGTERM, or when installed packages change; but not before the templates that it
has forked: if one of them is killed, it reaps the ranks of that one, and writes down how they ended. `template.py` loads this file
from its folder. Standard library only; Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, Dict

Request = Dict[str, Any]
MARK = "RANKDECK_MARK"  # variable by which an agent finds the processes of its run

NO_MARK = "." + 60 * "-"
"""Its value here. A process that is forked for a run puts the run's mark into its place, where /proc shows it."""

START_NAMES = frozenset({"HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "RANKDECK_BACKEND", "RANKDECK_MPI"})
START_PREFIXES = (
    "PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "GCONV_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_",
    "TORCH", "PYTORCH_", "ATEN_", "C10_", "KINETO_", "CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "HSA_", "HIP_", "ROC", "MIOPEN_", "TRITON_",
    "DNNL_", "ONEDNN_", "XPU_", "ZE_", "NUMPY_", "NPY_", "OPENSSL_", "SYMPY_", "MPI4PY_", "UCX_", "UCC_",
)  # fmt: skip
"""Variables that the C library, Python, rankdeck or libraries of torch read when a process starts or torch is imported."""

READ_LATER = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "PYTHONPATH", "TORCH_NCCL_")
"""Beginnings of such names that are read later. PYTHONPATH is looked at by itself."""

NAMES = "template-names"
"""The file beside the folders of templates: further variables that an import has read and in which requests differed."""

INSTALLED = ("site-packages", "dist-packages")
START_FILES = frozenset({"sitecustomize", "usercustomize"})  # Python imports them at its start
LOOK_TIME = 5.0  # seconds between two looks at memory, folder and idle time
REQUEST_TIME = 5.0  # seconds in which a process that has connected sends its request
MOST_LOST = 8  # most runs whose template was killed and whose ranks are reaped here

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that supervisors or their shells may ignore; ranks must not."""


def is_read_at_start(name: str) -> bool:
    """Whether a variable decides what a process is after its imports, so that a fork can't be given another value."""
    return (name in START_NAMES or name.startswith(START_PREFIXES)) and not name.startswith(READ_LATER)


def split_path(environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """The folders of PYTHONPATH but the first, which is of rankdeck: installed packages, and others."""
    folders = [os.path.abspath(one) for one in environment.get("PYTHONPATH", "").split(os.pathsep)[1:]]
    installed = [one for one in folders if os.path.basename(one) in INSTALLED]
    return installed, [one for one in folders if one not in installed]


def likeness(environment: dict[str, str], cores: list[int], names: list[str]) -> str:
    """A key of an environment. Processes of environments with equal keys can be forked from the same template. A hash: variables may be
    secret. `names`:
    of NAMES."""
    values = sorted((name, value) for name, value in environment.items() if is_read_at_start(name) or name in names)
    # libgomp counts cores when it is loaded.
    rest = [split_path(environment)[0], [] if "OMP_NUM_THREADS" in environment else sorted(cores)]
    data = json.dumps([values, rest]).encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()


def read_names(folder: str) -> list[str]:
    """The names in NAMES. `folder`: that of sockets."""
    with contextlib.suppress(OSError), open(os.path.join(folder, NAMES), errors="surrogateescape") as file:
        return file.read().split()
    return []


def serve(own: Any, library: str, words: list[str]) -> tuple[Request, list[int]] | None:
    """Is the template of the user. The arguments are of `template.main`; `own` is that module. Returns as `template.serve`, in a forked
    process."""
    terms = json.loads(words[1])
    if not terms.pop("is_again", False):
        detach()
    here = UserTemplate(own, library, terms)
    here.prepare()
    return here.serve()


def detach() -> None:
    """Leaves the process that has started this one, and stops ignoring the signals that it ignores."""
    if os.fork():
        os._exit(0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class UserTemplate:
    """This process. `own`: `template.py`; `terms`: see above."""

    def __init__(self, own: Any, library: str, terms: Request) -> None:
        self._own = own
        self._library, self._terms, self._environment = library, terms, dict(os.environ)
        self._folder: str = terms["folder"]
        self._lock: int = terms["lock"]
        os.set_inheritable(self._lock, False)
        self._listener: socket.socket | None = socket.socket(fileno=terms["listener"])
        os.set_inheritable(self._listener.fileno(), False)
        self._listener.listen()  # again: the kernel shows its clients this process instead of the supervisor
        self._runs: dict[int, tuple[int, float]] = {}
        """Templates of runs, each with the descriptor of its working directory and its idle time."""
        self._lost: list[int] = []
        """Such descriptors of templates that were killed."""
        self._kept: list[str] = []
        self._later: list[str] = []
        """Modules of the profile: those imported here, and those that each template of a run imports."""
        self._idle_at = time.monotonic() + terms["linger"]
        self._has_run = False
        beside = os.path.dirname(library)
        self._preload: Any = own.load_beside("preload", beside)
        self._limits: Any = own.load_beside("limits", beside)
        self._sources = own.load_beside("sources", beside).Sources(time.time_ns())

    def prepare(self) -> None:
        """Imports torch and those modules of the profile that are installed."""
        own = self._own
        note = {"pid": os.getpid(), "start": own.forked.start_time(os.getpid()), "python": sys.executable}
        with open(os.path.join(self._folder, "note.new"), "w") as file:
            json.dump(note, file)
        os.rename(file.name, os.path.join(self._folder, "note.json"))
        self._show_title()
        self._packages = [entry for entry in sys.path if os.path.basename(entry) in INSTALLED]
        self._sources.note(self._packages)
        with self._preload.record_reads():
            self._imports = own.Imports(self._library)
            before = set(sys.modules)
            if not self._imports.unfit:
                self._import_modules()
        self._modules = self._preload.sources_of(before)
        self._sources.note(self._modules)
        self._imports.settle()
        self._ready_at = time.time()
        self._show_title()

    def _show_title(self) -> None:
        self._own.titles.show_title("user-template", "(rankdeck clean --template ends it)")

    def _import_modules(self) -> None:
        refused = dict(self._terms["refused"])
        for name in self._terms["modules"]:
            if name in refused:
                continue
            found = self._preload.import_all([name], lambda name: None)
            if found.is_spoilt:
                self._begin_again([*self._terms["refused"], *found.refused])
            (self._later if found.refused else self._kept).append(name)
            self._imports.add(found)

    def _begin_again(self, refused: list[list[str]]) -> None:
        """Executes this program again without modules that can't be kept."""
        assert self._listener is not None
        for descriptor in (self._lock, self._listener.fileno()):
            os.set_inheritable(descriptor, True)
        terms = json.dumps({**self._terms, "refused": refused, "is_again": True})
        program = os.path.join(os.path.dirname(self._library), "template.py")
        os.execve(sys.executable, [sys.executable, "-u", program, "user", terms], self._environment)

    def serve(self) -> tuple[Request, list[int]] | None:
        """Forks a template for each run that asks. Returns as `serve` above."""
        self._own.become_subreaper()
        self._wake, self._wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
        over: list[int] = []
        has_children = True
        while self._listener is not None or has_children:
            waiting = [self._wake] + ([self._listener.fileno()] if self._listener is not None else [])
            ready = select.select(waiting, [], [], LOOK_TIME)[0]
            if self._wake in ready:
                os.read(self._wake, 4096)
            has_children = self._bury()
            if over:
                self._retire()
            if self._listener is not None and self._listener.fileno() in ready:
                wire, _ = self._listener.accept()
                request, descriptors = self._take(wire)
                if request is not None and self._fork(wire, request, descriptors) == 0:
                    return self._become_template(wire, request, descriptors)
                wire.close()
                for descriptor in descriptors:
                    os.close(descriptor)
            elif not ready:
                self._look()
        return None

    def _look(self) -> None:
        """Ends the service if no run uses it, or can use it any more."""
        is_idle = not self._runs and time.monotonic() > self._idle_at
        if is_idle or not os.path.exists(os.path.join(self._folder, "socket")) or self._limits.is_memory_short():
            self._retire()

    def _retire(self) -> None:
        """Takes no more requests. Processes that it has forked go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, "socket"))
            listener.close()
            os.close(self._lock)

    def _take(self, wire: socket.socket) -> tuple[Request | None, list[int]]:
        """The request of a connection and its descriptors. None: there is none, or it can't be served, which was said."""
        _, user, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        wire.settimeout(REQUEST_TIME)
        data, descriptors = self._own.receive(wire) if user == os.geteuid() else (b"", [])
        wire.settimeout(None)
        if not data or len(descriptors) != 2:
            return None, descriptors
        request: Request = json.loads(data)
        if self._imports.unfit:
            self._own.say(wire, {"unfit": self._imports.unfit})
            self._retire()
        elif self._sources.have_changed():
            self._own.say(wire, {"unlike": "packages were installed or removed"})
            self._retire()
        elif reason := self._difference(request):
            self._own.say(wire, {"unlike": reason})
        else:
            return request, descriptors
        return None, descriptors

    def _difference(self, request: Request) -> str:
        """Why a process of a request can't be forked from this one; empty if it can."""
        theirs, ours = request["env"], self._environment
        read = {name for name in self._preload.READ if not name.startswith("RANKDECK_")}
        names = {name for name in {*theirs, *ours} if name in read or is_read_at_start(name)} - {"PYTHONPATH"}
        if other := sorted(name for name in names if theirs.get(name) != ours.get(name)):
            self._note_names([name for name in other if not is_read_at_start(name)])
            return f"{', '.join(other)} in the environment"
        if "OMP_NUM_THREADS" not in theirs and sorted(request["cores"]) != sorted(os.sched_getaffinity(0)):
            return "other cores"
        installed, others = split_path(theirs)
        if installed != split_path(ours)[0]:
            return "PYTHONPATH"
        if len(theirs[MARK]) > len(NO_MARK):
            return "a longer mark"
        imported = START_FILES.union(name.partition(".")[0] for name in sys.modules) - {"rankdeck", "__main__"}
        for folder in others:
            with contextlib.suppress(OSError):  # Python also passes over a folder that it can't read
                if found := sorted(imported.intersection(name.partition(".")[0] for name in os.listdir(folder))):
                    return f"{found[0]} in {folder}"
        return ""

    def _note_names(self, names: list[str]) -> None:
        """Makes the next launch look for a template with its own values of variables. This template may serve no new run."""
        if names:
            with contextlib.suppress(OSError), open(os.path.join(os.path.dirname(self._folder), NAMES), "a") as file:
                file.write("".join(f"{name}\n" for name in names))

    def _fork(self, wire: socket.socket, request: Request, descriptors: list[int]) -> int:
        """Returns the pid; 0 in the new process; -1: it failed, which was said."""
        try:
            pid = os.fork()
        except OSError as error:
            self._own.say(wire, {"unlike": str(error)})
            return -1
        if pid:
            if not self._has_run:
                self._has_run, self._idle_at = True, 0.0
            self._runs[pid] = os.dup(descriptors[1]), request["linger"]
        return pid

    def _become_template(
        self, wire: socket.socket, request: Request, descriptors: list[int]
    ) -> tuple[Request, list[int]] | None:
        """Turns this fork into the template of a run, and returns as that does."""
        own, environment = self._own, request["env"]
        owner = os.getppid()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._listener is not None:
            self._listener.close()
            os.close(self._lock)
        for descriptor in (self._wake, self._wake_in, *(folder for folder, _ in self._runs.values()), *self._lost):
            os.close(descriptor)
        log, folder = descriptors
        os.fchdir(folder)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.close(folder)
        os.environ.clear()
        os.environ.update(environment)
        try:
            show_mark(environment[MARK])
            for number, soft, hard in request["limits"]:
                resource.setrlimit(number, (soft, hard))
            os.sched_setaffinity(0, request["cores"])
        except (OSError, ValueError) as error:  # such as a limit that only root may raise
            own.say(wire, {"unlike": str(error)})
            os._exit(0)
        os.umask(request["umask"])
        ours = [self._library, *split_path(self._environment)[0]]
        sys.path[:] = [
            *ours[:1],
            *split_path_in_order(environment),
            *(entry for entry in sys.path if entry not in ours),
        ]
        start = own.forked.start_time
        own.say(wire, {"template": os.getpid(), "start": start(os.getpid()), "owner": [owner, start(owner)]})
        own.show_role("")
        own.tell_sources(wire, [*self._packages, *self._modules])
        if self._terms["refused"]:
            own.say(wire, {"left_out": self._terms["refused"]})
        imports = self._imports
        imports.are_earlier = request["at"] > self._ready_at and not self._later
        if self._later:
            library = os.path.relpath(request["library"])
            imports.add(own.preload(wire, self._later, environment, library, self._kept))
            imports.settle()
        job: tuple[Request, list[int]] | None = own.serve(wire, imports, environment)
        return job

    def _bury(self) -> bool:
        """Reaps templates of runs, and the ranks of those that were killed, whose ends it writes down. Returns whether it has children."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                return False
            if found is None:
                return True
            if found.si_pid in self._runs:
                folder, linger = self._runs.pop(found.si_pid)
                self._idle_at = max(self._idle_at, time.monotonic() + linger)
                self._lost.insert(0, folder)
                if found.si_code == os.CLD_EXITED:  # it had no ranks left
                    os.close(self._lost.pop(0))
                for old in self._lost[MOST_LOST:]:
                    os.close(old)
                del self._lost[MOST_LOST:]
            else:
                for folder in self._lost:
                    self._own.note_end(found, folder)
            os.waitpid(found.si_pid, 0)


def split_path_in_order(environment: dict[str, str]) -> list[str]:
    """The folders of PYTHONPATH but the first, as Python puts them on its path."""
    return [os.path.abspath(one) for one in environment.get("PYTHONPATH", "").split(os.pathsep)[1:]]


def show_mark(mark: str) -> None:
    """Makes /proc show the mark of a run in the environment of this process. Raises OSError."""
    with open("/proc/self/stat", "rb") as status:
        begin, end = (int(field) for field in status.read().rpartition(b")")[2].split()[47:49])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        place = memory.read(end - begin).find(f"{MARK}={NO_MARK}\0".encode())
        if place < 0:
            raise OSError("the environment has no place for a mark")
        memory.seek(begin + place + len(MARK) + 1)
        memory.write(os.fsencode(mark).ljust(len(NO_MARK), b"\0"))
