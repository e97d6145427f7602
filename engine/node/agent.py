"""The agent: one standard-library file that owns one node's ranks for one run.

It is sent through the stdin of a bare Python and nothing of it is installed. Three processes come of it:

    bridge   the process that was booted: copies between its stdin/stdout (a pipe or ssh) and the agent's socket
    warden   own session; parent of the agent, starts it again if it is killed, and notes how ranks ended meanwhile
    agent    own socket, 0600, in the user's private runtime folder; starts, watches and ends ranks

The bridge dies with its link; warden and agent stay, for the lease at most. Ranks write to files and have sessions of their
own, so they outlive every one of the three. A rank's process group is killed *before* its leader is reaped: until then its
number can't be given to anybody else. Must run on Python 3.8 and later.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import pwd
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import time
from typing import Any, Dict  # noqa: UP035

Message = Dict[str, Any]  # noqa: UP006 - evaluated when it is imported, by Python 3.8 too

PROTOCOL = 2
SYNC = f"\0RANKDECK-AGENT {PROTOCOL}\n".encode()
"""Printed once before the first frame; whatever a login shell printed before it is skipped."""

PROBE_SYNC = b"\0RANKDECK-PROBE 1\n"
"""What a probe prints before its answers."""

MAX_FRAME = 16 * 1024 * 1024
EXIT_CUT_OFF, EXIT_FAILED = 98, 99
EXIT_LINK_LOST = 96
"""Of a bridge whose agent is still there, or was killed. One whose agent has ended on purpose exits with 0."""

MARK = "RANKDECK_MARK"
"""Environment variable that every process of a run inherits from its rank; its value is nobody else's."""

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Makes a rank write its Python stacks down; `template.py` and the rank package have the same."""

TICK = 0.05
"""Seconds between two looks at the sizes of the ranks' files: a person sees no delay, and 64 ranks cost under 1 % of a core."""

MPI_OWN = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "HYDI_")
"""Beginnings of the variables by which MPI tells a process that it belongs to a job."""

MPI_GIVES = ("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_", "MPICH_", "MPIR_")
"""Beginnings of what ranks get from mpirun. Its daemons set PATH and library paths for themselves, too."""

BATCH_OWN = ("SLURM_", "PBS_", "LSB_", "COBALT_", "PE_HOSTFILE")
"""Beginnings of those by which mpirun would find nodes that are not the plan's."""

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Has ranks of Open MPI let others run while they wait: by its own count there may be a core for each."""

MPIRUN_GRACE = 2.0
"""Seconds that mpirun has to end by itself once its processes have; in the second half it is asked by SIGTERM."""

CHUNK = 1 << 16
"""Bytes of a rank's file that go into one frame."""

RELAY_AHEAD = 1 << 18
"""Bytes that may be under way to the supervisor; the rest stays in the files. On a slow link all other news waits behind them."""

KEEP = "keep"
"""A file in the agent's folder: what ranks wrote could not be stored elsewhere, so that it must stay."""

MISSED = 3
"""Heartbeats without a word after which a link is taken for dead."""

LAST_ERRORS, LAST_NUMBERS = 16 * 1024, 4096
"""Bytes from the end of a failed rank's files that come with the news."""

KNOCK_TIME = 3.0
"""Seconds in which another node must be reached: there is nothing in between, or it is not the way."""

FORGOTTEN = 7 * 86400.0
"""Seconds after which nobody comes back for the files of a run whose agent has gone."""

KNOCK_GRACE = 0.3
"""Seconds that other addresses have once one has answered: one that is filtered never will."""

GPU_SILENCE = 6.0
"""Seconds without a word of `gpus.py`, which speaks every two, after which what it said last holds no more."""

MAX_ANSWER, MAX_ANSWERS = 1 << 16, 1 << 20
"""Bytes of what a rank answers, and of what all of them do: a byte may take six in a frame."""

ABORT_GRACE = 1.0
"""Seconds in which the rank that has called MPI_Abort ends by itself, and so tells how, before all of its job are killed."""

BOOT = (
    "import os,sys,zlib;n=int(sys.argv[1]);s=bytearray();"
    "list(iter(lambda:len(s)<n and(s.extend(os.read(0,n-len(s))or sys.exit(98))or 1),False));"
    'exec(compile(zlib.decompress(s),"rankdeck-agent","exec"))'
)
"""Reads exactly its own program, compressed, from stdin, so that the next byte is the first frame. One line without a single
quote: any login shell can be given it as a word."""


# --- frames: 4 bytes length, JSON, and bytes as they are behind a line feed where a message carries any ---------------


def encode_frame(message: Message, data: bytes = b"") -> bytes:
    """One message as bytes.

    Args:
        message: anything that JSON can say; with `data` at most MAX_FRAME bytes of it.
        data: what arrives as `message["data"]`.
    """
    body = json.dumps(message, separators=(",", ":")).encode() + (b"\n" + data if data else b"")
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME}")
    return struct.pack(">I", len(body)) + body


class FrameBuffer:
    """Takes bytes in as they come and gives whole messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Adds bytes. Returns the messages that are complete now; raises ValueError for what can't be a frame."""
        self._data += data
        messages: list[Any] = []
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">I", self._data)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is larger than {MAX_FRAME}")
            if len(self._data) < 4 + size:
                break
            text, line_feed, data = bytes(self._data[4 : 4 + size]).partition(b"\n")
            del self._data[: 4 + size]
            message = json.loads(text)
            if line_feed:
                if not isinstance(message, dict):
                    raise ValueError("bytes come with what is no message")
                message["data"] = data
            messages.append(message)
        return messages


# --- processes -------------------------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's (Linux, prctl 36)."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def process_mark(pid: int) -> tuple[int, str, int] | None:
    """(start time, state letter, parent) of a process, or None. The start time tells it from a later one of its number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0].decode(), int(fields[1])


def start_time(pid: int) -> int:
    """Start time of a child that is not reaped yet."""
    mark = process_mark(pid)
    return mark[0] if mark else 0


def marked(marks: list[str]) -> list[int]:
    """Every process that has one of this run's marks in its environment: a child that lost its parents is found by nothing else."""
    wanted, found = {(MARK + "=" + mark).encode() for mark in marks}, []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # ended, or somebody else's
            if wanted.intersection(file.read().split(b"\0")):
                found.append(int(name))
    return found


def descendants(root: int, spare: set[int]) -> list[int]:
    """Every process below `root`, zombies left out, without those in `spare` (whose children do count)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            mark = process_mark(int(name))
            if mark is not None and mark[1] not in "ZX":
                children.setdefault(mark[2], []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            if pid not in spare:
                found.append(pid)
    return found


def kill_group(pid: int, number: int) -> None:
    """Signals the process group that `pid` leads; no complaint where nobody is left in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_quietly(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


def wake(path: str) -> bool:
    """Writes a byte into a named pipe. Returns False where nobody reads it, nobody has for long, or it is something else."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"\n") == 1
    except OSError:
        return False
    finally:
        os.close(pipe)


def file_size(path: str) -> int:
    """In bytes; 0 where there is no file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def read_from(path: str, begin: int, most: int) -> str:
    """The next bytes of a file as text; nothing where there is none, or something else."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.pread(file, most, begin).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def next_zombie() -> int | None:
    """The pid of a child that has ended and is not reaped yet, or None."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def reap(pid: int) -> int:
    """Takes a zombie away. Returns its exit code, or minus the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start_process(argv: list[str], **options: Any) -> int:
    """Starts a process in a session of its own. Returns its pid.

    The Popen object is told that it is done: reaping is ours alone, and one that is collected unreaped would otherwise be
    polled by `subprocess` later, when its number may be another process's.
    """
    popen = subprocess.Popen(argv, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    popen.returncode = 0
    return popen.pid


def sweep(root: int, spare: set[int], marks: list[str], seconds: float) -> list[int]:
    """Kills everything below `root` or with one of this run's marks, by force, until nothing is left or the time is over.

    Returns what is left.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = sorted({*descendants(root, spare), *marked(marks)} - spare)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            kill_quietly(pid, signal.SIGKILL)
        while True:
            zombie = next_zombie()
            if zombie is None or zombie in spare:
                break
            reap(zombie)
        time.sleep(0.01)


# --- where things are ------------------------------------------------------------------------------------------------


def runtime_folder() -> str:
    """The user's private folder for sockets on this node."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK | os.X_OK):
        return private_folder(os.path.join(base, "rankdeck"))
    return temporary_folder()


def temporary_folder() -> str:
    """The user's private folder for files of runs on a node that is not the supervisor's: its own disk, not the shared one."""
    base = os.environ.get("TMPDIR") or "/tmp"
    return private_folder(os.path.join(base, f"rankdeck-{os.geteuid()}"))


def private_folder(folder: str) -> str:
    """Makes a folder for this user alone. Raises RuntimeError where it is somebody else's."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} is not a folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)
    return folder


def remove_forgotten(folder: str) -> None:
    """Removes what runs have left on this node whose supervisor has never come back for it.

    Args:
        folder: where a node's own files of runs are; any other is left alone.
    """
    if os.path.basename(folder) != f"rankdeck-{os.geteuid()}":
        return
    before = time.time() - FORGOTTEN
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mtime > before:
                continue
            with contextlib.suppress(OSError):  # its run, or another agent that tidies up, was faster
                paths = [os.path.join(parent, name) for parent, _, files in os.walk(entry.path) for name in files]
                is_old = all(os.lstat(path).st_mtime < before for path in paths)
                kept = os.path.exists(os.path.join(entry.path, KEEP))
                if is_old and not kept and (lock := take_lock(entry.path)) is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def socket_path(mark: str) -> str:
    """Where this run's agent listens, as things are now: the folder of a login goes away with its last session."""
    return os.path.join(runtime_folder(), f"agent-{mark}.sock")


def listen(folder: str, mark: str) -> socket.socket:
    """A listening socket for this user only. Where it is stands in the run's folder, for whoever has another environment."""
    path = socket_path(mark)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4)
    write_atomically(os.path.join(folder, "socket"), path.encode())
    return listener


def open_log(path: str) -> io.BufferedWriter:
    """A private file that is appended to."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb")


def close_all(descriptors: list[int]) -> None:
    """Closes them, once."""
    while descriptors:
        os.close(descriptors.pop())


def first_words(path: str) -> str:
    """What a program said first, on one line: what follows from a mistake comes after it."""
    try:
        with open(path, "rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").splitlines()
    except OSError:
        return "it said nothing"
    words = [line.strip() for line in lines if line.strip().strip("-")]
    return " ".join(words)[:400] or "it said nothing"


def size_of(descriptor: int) -> int:
    """Bytes of an open file."""
    return os.fstat(descriptor).st_size


def last_bytes(descriptor: int, size: int) -> bytes:
    """The end of a file."""
    return os.pread(descriptor, size, max(0, os.fstat(descriptor).st_size - size))


def write_atomically(path: str, data: bytes) -> None:
    """Replaces a file so that a reader sees the old or the new content, never a part."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


# --- the agent -------------------------------------------------------------------------------------------------------


class Rank:
    """One rank's process. `status` is None while it runs; `adopted`: another process is its parent, the template or the warden."""

    def __init__(self, number: int, files: list[str]) -> None:
        self.number, self.files = number, files
        self.pid = self.start = self.generation = 0
        self.status: int | None = None
        self.ended_at = 0.0
        self.adopted = False
        self.reason = ""
        self.missing_since: float | None = None
        self.watched: list[int] = []
        with contextlib.suppress(OSError):  # a folder that was removed: its growth is not seen, its ranks go on
            for path in files:
                self.watched.append(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self.sizes = [0] * len(files)
        self.sent = [0] * len(files)
        """How much of each file was relayed."""

    def path(self, kind: str) -> str:
        """Of another file beside those."""
        return self.files[2][: -len("metrics")] + kind

    def close(self) -> None:
        for descriptor in self.watched:
            os.close(descriptor)
        self.watched = []


class Job:
    """A process that a template is asked to fork.

    Args:
        request: what `template.py` takes.
        files: opens those whose descriptors go along; they are closed once it is sent.
        started: called with pid and start time.
        refused: called where the template can't do it: somebody else must.
        dropped: called where it is not wanted any more.
    """

    def __init__(self, request: Message, files: Any, started: Any, refused: Any, dropped: Any) -> None:
        self.request, self.files = request, files
        self.started, self.refused, self.dropped = started, refused, dropped


class Template:
    """A process of `template.py`: it imports torch once and forks this node's ranks and store. One job at a time is with it.

    Args:
        argv: its command; the number of its socket is added.
        environment: its own and, but for what a request changes, that of each process that it forks.
        log: a file that takes what its imports say.
    """

    def __init__(self, argv: list[str], environment: dict[str, str], log: str) -> None:
        self.python, self.environment = argv[0], environment
        self.jobs: list[Job] = []
        self.with_it: Job | None = None
        self.ready = False
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open_log(log) as file:
            self.pid = start_process(
                [*argv, str(theirs.fileno())], env=environment, stdout=file, stderr=file, pass_fds=[theirs.fileno()]
            )
        self.wire.setblocking(False)

    def serves(self, python: str, environment: dict[str, str]) -> bool:
        """Whether a process that it forks is what this Python would be in this environment, but for where our library is."""
        ours, theirs = dict(self.environment), dict(environment)
        for name in ("PYTHONPATH", MARK):
            ours.pop(name, None)
            theirs.pop(name, None)
        return self.python == python and ours == theirs

    def ask_for_spares(self, count: int) -> None:
        """Lets it fork so many processes ahead of the jobs that they will be."""
        with contextlib.suppress(OSError):
            self.wire.send(json.dumps({"spares": count}).encode())

    def add(self, job: Job, environment: dict[str, str]) -> None:
        """Queues a job, whose process gets this environment."""
        job.request["env"] = {name: value for name, value in environment.items() if self.environment.get(name) != value}
        self.jobs.append(job)
        self.go_on()

    def go_on(self) -> None:
        """Hands the next job over, if the template waits for one."""
        while self.ready and self.with_it is None and self.jobs:
            job = self.jobs.pop(0)
            try:
                with contextlib.ExitStack() as stack:
                    files = [stack.enter_context(file) for file in job.files()]
                    numbers = struct.pack(f"{len(files)}i", *(file.fileno() for file in files))
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
                    self.wire.sendmsg([json.dumps(job.request).encode()], [rights])
                self.with_it = job
            except OSError:  # too long for one message, or the template has just died
                job.refused()


class GpuWatch:
    """A process of `gpus.py`, which tells how ranks use their GPUs. It may hang in a sick driver; nobody waits for it.

    Args:
        argv: its command; the number of its socket is added.
        environment: of the ranks.
        ranks: whose GPUs it tells of, in its order.
    """

    def __init__(self, argv: list[str], environment: dict[str, str], ranks: list[int]) -> None:
        self.ranks, self.heard = ranks, time.monotonic()
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = start_process([*argv, str(theirs.fileno())], env=environment, pass_fds=[theirs.fileno()])
        self.wire.setblocking(False)


class Stranger:
    """A connection whose first message has not come yet."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        self.incoming = FrameBuffer()
        self.descriptors: list[int] = []

    def hear(self) -> list[Any]:
        """The messages that are whole by now. Raises OSError where there will be none."""
        room = array.array("i")
        data, extra, _, _ = self.wire.recvmsg(1 << 20, socket.CMSG_SPACE(8 * room.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                room.frombytes(content[: len(content) - len(content) % room.itemsize])
        self.descriptors += room
        if not data:
            raise ConnectionResetError
        return self.incoming.feed(data)

    def close(self) -> None:
        self.wire.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class Agent:
    """Owns the ranks of one run on one node.

    Args:
        listener: its listening socket.
        warden: pid of its parent.
        mark: of the run.

    What it must remember lies in its working directory; files of the ranks are given with each spawn.
    """

    def __init__(self, listener: socket.socket, warden: int, mark: str) -> None:
        self.listener, self.warden, self.mark = listener, warden, mark
        self.marks = [mark]
        """By which its processes are found: an agent that was there before may have had another."""
        self.selector = selectors.DefaultSelector()
        self.link: socket.socket | None = None
        self.incoming = FrameBuffer()
        self.outgoing = bytearray()
        self.attempt = -1
        self.cleared_attempt = self.stopped_attempt = -1
        self.store_asked = -1
        """The attempt whose store is there or on its way."""
        self.ranks: dict[int, Rank] = {}
        self.starting: dict[int, int] = {}
        self.store: Message | None = None
        self.terms: Message = {"lease": 600.0, "on_disconnect": "keep", "stop_ladder": [["SIGKILL", 5.0]]}
        self.ladder: Message | None = None
        self.alone_since = time.monotonic()
        self.next_look = 0.0
        self.leaving: float | None = None
        self.spawning = False
        self.dirty = False
        self.heard = time.monotonic()
        self.peer: tuple[int, int] | None = None
        """The bridge that the link comes from: pid and start time."""
        self.relays = False
        """Whether what ranks write goes to the supervisor, who is on another machine."""
        self.behind = False
        self.turn = 0
        self.under_way = 0
        """Bytes that were relayed and have not been heard to be stored."""
        self.when_relayed: list[Message] = []
        """Messages that must not come before what ranks wrote."""
        self.door: tuple[socket.socket, str] | None = None
        """Where other nodes knock to find a way to this one, and what they hear there."""
        self.news_pipe: tuple[str, int] | None = None
        self.stacks_asked: tuple[float, list[Any]] | None = None
        self.stacks: list[Any] | None = None
        """What ranks have answered, while they are asked for the rest."""
        self.stacks_sizes: list[int] = []
        self.probes: dict[int, tuple[int, Any]] = {}
        """Numbers of the requests that processes answer, and the files of the answers."""
        self.mpirun: Message | None = None
        """The mpirun of this attempt or, on a node that is not the first, its daemon here."""
        self.daemon_done = -1
        """The attempt whose mpirun, or daemon of it, has ended here."""
        self.launchers: dict[str, tuple[socket.socket, Message]] = {}
        """What mpirun has started in place of an `ssh` to another node, with its request, by the node's name to mpirun."""
        self.proxies: dict[int, socket.socket] = {}
        """Processes of mpirun, by the rank whose place there they hold."""
        self.unplaced: dict[int, tuple[Any, Any]] = {}
        """Ranks that wait for theirs: what starts each, and what is done where it never comes."""
        self.doomed: dict[int, float] = {}
        """Ranks whose process of mpirun has ended, and until when they may end by themselves."""
        self.template: Template | None = None
        self.unfit: list[Template] = []
        """Templates that could not fork: whatever they would serve is started without one."""
        self.gpu_watch: GpuWatch | None = None

    # what it remembers

    def save(self) -> None:
        """Writes down what a successor must know. The loop does so before it sends, so nobody hears of it earlier."""
        if not self.dirty:
            return
        ranks = [
            [r.number, r.pid, r.start, r.status, r.reason, r.files, r.ended_at, r.generation]
            for r in self.ranks.values()
        ]
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        data = {
            "boot": boot, "attempt": self.attempt, "cleared": self.cleared_attempt, "ranks": ranks, "terms": self.terms,
            "store": self.store, "mpirun": self.mpirun, "daemon_done": self.daemon_done, "spawning": self.spawning, "version": PROTOCOL, "marks": self.marks,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk: tried again with the next round
            write_atomically("agent.json", json.dumps(data).encode())
            self.dirty = False

    def recall(self) -> None:
        """Adopts what an earlier agent of this run left on this node."""
        try:
            with open("agent.json") as file:
                data = json.load(file)
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot = file.read().strip()
        except (OSError, ValueError):
            return
        if data.get("version") != PROTOCOL:
            return
        self.attempt, self.cleared_attempt, self.terms = data["attempt"], data["cleared"], data["terms"]
        self.marks = sorted({*self.marks, *data["marks"]})
        for number, pid, start, status, reason, files, ended_at, generation in data["ranks"]:
            if status is None and data["boot"] != boot:
                continue
            rank = self.ranks[number] = Rank(number, files)
            rank.pid, rank.start, rank.status, rank.reason, rank.adopted = pid, start, status, reason, True
            rank.ended_at, rank.generation = ended_at, generation
        store = data["store"]
        if store and data["boot"] == boot and (process_mark(store["pid"]) or (None,))[0] == store["start"]:
            self.store = store
            self.store_asked = store["attempt"]
        self.daemon_done = data.get("daemon_done", -1)
        mpirun = data.get("mpirun")
        if mpirun and data["boot"] == boot:
            self.mpirun = mpirun
        if data["spawning"]:
            self._end_unknown()
        self.dirty = True

    def _root(self) -> int:
        """Below whom the processes of this run are: the warden, unless it was killed and its number may be another's."""
        return self.warden if os.getppid() == self.warden else os.getpid()

    def _end_unknown(self) -> None:
        """An earlier agent died between starting ranks and writing them down: those are ended, and started anew."""
        known = {rank.pid for rank in self.ranks.values()} | {self.store["pid"] if self.store else 0}
        known.update(part.pid for part in (self.template, self.gpu_watch) if part)
        spare = {os.getpid()}
        if self.mpirun is not None and self._mpirun_lives():  # what it starts may lead sessions of its own
            spare.update([self.mpirun["pid"], *descendants(self.mpirun["pid"], set())])
        for pid in descendants(self._root(), spare):
            try:
                if os.getsid(pid) not in known:
                    kill_quietly(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _noted_status(self, pid: int, start: int) -> int | None:
        """How a rank ended while no agent was there, from the warden's notes."""
        try:
            with open("exits") as file:
                notes = [line.split() for line in file if line.endswith("\n")]
        except OSError:
            return None
        return next((int(note[2]) for note in notes if note[:2] == [str(pid), str(start)]), None)

    # the loop

    def run(self, *, again: bool) -> int:
        """Serves until it is told to close, or its lease is over.

        Args:
            again: an earlier agent was killed. It may have listened anew, at a socket of its own.

        Returns:
            The exit status for the warden.
        """
        if again:
            with contextlib.suppress(OSError, RuntimeError):
                self.listener = listen(".", self.mark)
        self.recall()
        wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._register_listener()
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        self.save()
        next_tick = 0.0
        while self.leaving is None or (self.outgoing and self.link and time.monotonic() < self.leaving):
            hurry = self.behind and self.under_way < RELAY_AHEAD and not self.outgoing
            begun = time.monotonic()
            for key, _ in self.selector.select(0.0 if hurry else max(0.0, next_tick - time.monotonic())):
                key.data()
            self._reap()
            self._excuse(begun)
            if hurry and self.relays:
                self._relay()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + TICK
            self.save()
            self._flush()
        return 0

    def _excuse(self, begun: float) -> None:
        """What this process did not hear while it was busy itself, or stopped, is nobody else's silence."""
        if time.monotonic() - begun > 1 + TICK:
            self.heard = max(self.heard, time.monotonic())

    def _register_listener(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _keep_listening(self) -> None:
        """Listens anew where the socket has gone, as it does when a user logs out who has no other session."""
        if time.monotonic() < self.next_look or self.leaving is not None:
            return
        self.next_look = time.monotonic() + 1
        if (
            self.terms.get("heartbeat") and not os.stat(".").st_nlink
        ):  # somebody has cleaned up: nobody can find this agent any more
            self._stop_alone()
            return
        with contextlib.suppress(OSError, RuntimeError):
            wanted = socket_path(self.mark)
            if wanted != self.listener.getsockname() or not os.path.exists(wanted):
                listener = listen(".", self.mark)
                self.selector.unregister(self.listener)
                self.listener.close()
                self.listener = listener
                self._register_listener()

    def _tick(self) -> None:
        self._keep_listening()
        self._watch_adopted()
        self._watch_mpirun()
        self._walk_ladder()
        self._answer_stacks()
        self._notice_silent_gpus()
        if self.link is not None:
            if not self.outgoing:  # sizes are absolute: a link that is stuck gets the newest when it moves again
                self._report_growth()
            if (beat := self.terms.get("heartbeat")) and time.monotonic() - self.heard > MISSED * beat:
                self._drop_silent_link()
        elif self.leaving is None:
            alone = time.monotonic() - self.alone_since
            if (self.terms["on_disconnect"] == "stop" and alone > 1) or alone > self.terms["lease"]:
                self._stop_alone()

    def _stop_alone(self) -> None:
        """Nobody is there to ask: ends the ranks, then itself."""
        if any(rank.status is None for rank in self.ranks.values()):
            if self.ladder is None:
                self._start_ladder(False)
        else:
            self._leave()

    def _leave(self) -> None:
        """Ends everything, then itself, once the last words are sent or two seconds have passed."""
        self._end_template()
        self._clear(self.attempt)
        self.leaving = time.monotonic() + 2
        with contextlib.suppress(OSError):
            os.unlink(self.listener.getsockname())

    # the link

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        stranger = Stranger(connection)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._hear_stranger(stranger))

    def _hear_stranger(self, stranger: Stranger) -> None:
        """The first message tells who it is: a supervisor, or a process that mpirun has started."""
        try:
            messages = stranger.hear()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self.selector.unregister(stranger.wire)
            stranger.close()
            return
        if not messages:
            return
        self.selector.unregister(stranger.wire)
        kind = messages[0].get("type") if isinstance(messages[0], dict) else None
        if kind in ("proxy", "launcher"):
            (self._take_proxy if kind == "proxy" else self._take_launcher)(stranger, messages[0])
            return
        self._hang_up()
        self.link, self.incoming, self.outgoing = stranger.wire, stranger.incoming, bytearray()
        pid = struct.unpack("3i", self.link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.peer, self.heard = (pid, start_time(pid)), time.monotonic()
        self.selector.register(self.link, selectors.EVENT_READ, self._receive)
        for message in messages:
            self._answer(message)

    def _hang_up(self) -> None:
        if self.link is not None:
            self.selector.unregister(self.link)
            self.link.close()
            self.link = None
            self.outgoing.clear()
            self.when_relayed.clear()
            self.relays = self.behind = False
            self.alone_since = time.monotonic()

    def _drop_silent_link(self) -> None:
        """The way to the supervisor is cut: its bridge hangs in a connection that may take hours to break by itself."""
        self._hang_up()
        self.alone_since = self.heard
        if self.peer is not None and start_time(self.peer[0]) == self.peer[1]:
            kill_quietly(self.peer[0], signal.SIGKILL)

    def _receive(self) -> None:
        if self.link is None:
            return
        try:
            data = self.link.recv(1 << 20)
            messages = self.incoming.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        if not data:
            self._hang_up()
            return
        self.heard = time.monotonic()
        for message in messages:
            self._answer(message)

    def _answer(self, message: Any) -> None:
        """Does what is asked. Whatever goes wrong is told: the ranks must not lose their agent over a full disk, say."""
        kind = message.get("type") if isinstance(message, dict) else message
        try:
            getattr(self, f"_on_{kind}")(message)
        except Exception as error:  # noqa: BLE001
            self.send(type="trouble", request=str(kind), reason=f"{type(error).__name__}: {error}")

    def send(self, **message: Any) -> None:
        """Queues a message for the supervisor; nobody listening means that the inventory will tell it later."""
        if self.link is not None:
            self.outgoing += encode_frame(message)

    def _flush(self) -> None:
        if self.link is None:
            return
        try:
            while self.outgoing:
                del self.outgoing[: self.link.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)
        self.selector.modify(self.link, events, self._receive)

    # what the supervisor asks

    def _on_hello(self, message: Message) -> None:
        if message["protocol"] != PROTOCOL:
            self.send(
                type="refused",
                reason="this node's agent speaks protocol {}, not {}".format(PROTOCOL, message["protocol"]),
            )
            return
        self.terms = message["terms"]
        self.dirty = True
        ranks = [
            {
                "attempt": self.attempt,
                "rank": r.number,
                "pid": r.pid,
                "status": r.status,
                "reason": r.reason,
                "generation": r.generation,
                **(self._last_words(r) if message.get("relay") else {}),
            }
            for r in sorted(
                self.ranks.values(), key=lambda rank: rank.ended_at
            )  # as they ended: the first is the cause
        ]
        store = [self.store["attempt"], self.store["port"]] if self.store else None
        library = os.path.exists(os.path.join("library", message["library"]))
        python = "{}.{}.{}".format(*sys.version_info[:3])
        self.send(
            type="hello",
            pid=os.getpid(),
            warden=self.warden,
            python=python,
            ranks=ranks,
            store=store,
            library=library,
            folder=os.getcwd(),
            shared=is_same_file(message.get("shared")),
            state=os.path.expanduser("~/.local/state/rankdeck"),
        )
        for rank in self.ranks.values():
            rank.sizes = [0] * len(rank.sizes)
        if not message.get("relay"):
            self._report_growth()
        for _, request in self.launchers.values():
            self.send(**request)

    def _on_stored(self, message: Message) -> None:
        """So many bytes have arrived."""
        self.under_way = max(0, self.under_way - message["size"])
        self._relay()

    def _on_ping(self, message: Message) -> None:
        self.send(type="pong")

    def _on_relay(self, message: Message) -> None:
        """From now on, what ranks write is sent, from where the supervisor has it."""
        self.relays = self.behind = True
        self.under_way = 0
        for number, *offsets in message["offsets"]:
            if message["attempt"] == self.attempt and number in self.ranks:
                self.ranks[number].sent = offsets
        self._relay()

    def _on_library(self, message: Message) -> None:
        """Unpacks the `rankdeck` package, whole or not at all."""
        target = os.path.join("library", message["name"])
        partial = f"{target}.{os.getpid()}.partial"
        os.makedirs(partial, mode=0o700)
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(message["tar"]))) as archive:
            for member in archive.getmembers():
                if (
                    not (member.isfile() or member.isdir())
                    or member.name.startswith("/")
                    or ".." in member.name.split("/")
                ):
                    raise RuntimeError(f"the library holds {member.name!r}")
            archive.extractall(partial)
        try:
            os.rename(partial, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _on_open_store(self, message: Message) -> None:
        """Takes a port from the kernel and keeps it: the store's process gets the listening socket itself, so no other
        launch can have it, and ranks may connect before that process has finished its imports."""
        attempt = message["attempt"]
        if attempt <= max(self.cleared_attempt, self.store_asked):
            if self.store and self.store["attempt"] == attempt:
                self.send(type="store", attempt=attempt, host=self.store["host"], port=self.store["port"])
            return
        self._end_store()
        self.store_asked = attempt
        environment = self._environment(message)
        try:
            family = socket.AF_INET6 if ":" in message["host"] else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.bind((message["host"], 0))
            listener.listen(4096)
            port = listener.getsockname()[1]
            os.makedirs(os.path.dirname(message["log"]), mode=0o700, exist_ok=True)
            news = message.get("news", "")
            with contextlib.suppress(FileExistsError):
                os.mkfifo(news or os.devnull, 0o600)
        except OSError as error:
            self.store_asked = -1
            self.send(type="store_lost", attempt=attempt, reason=str(error))
            return

        def started(pid: int, start: int) -> None:
            host = message["host"]
            self.store = {"attempt": attempt, "host": host, "port": port, "pid": pid, "start": start, "news": news}
            self.dirty = True
            self.send(type="store", attempt=attempt, host=host, port=port)

        def start_cold() -> None:
            argv = [*message["argv"], str(listener.fileno()), message["host"], str(port), news]
            try:
                with listener, open_log(message["log"]) as log:
                    pid = start_process(
                        argv, env=environment, cwd="/", stdout=log, stderr=log, pass_fds=[listener.fileno()]
                    )
            except OSError as error:
                self.store_asked = -1
                self.send(type="store_lost", attempt=attempt, reason=str(error))
            else:
                started(pid, start_time(pid))

        argv = [*message["argv"], "3", message["host"], str(port), news]
        request = {"argv": argv, "cwd": "/", "stacks": "", "library": message["library"]}
        job = Job(
            request, lambda: [*(open_log(message["log"]) for _ in "12"), listener], started, start_cold, listener.close
        )
        self._start(job, message, environment, {})

    def _on_warm(self, message: Message) -> None:
        """Gets a template ready for a launch that may come, and the processes that it will need."""
        template = self._template_for(message, self._environment(message))
        if template is not None:
            template.ask_for_spares(message["spares"])

    def _start(self, job: Job, message: Message, environment: dict[str, str], own: dict[str, str]) -> None:
        """Lets a job be forked by a warm template where the message allows it, else starts it by itself.

        Args:
            job: what is to be started.
            message: that asked for it.
            environment: of every process that the message asks for.
            own: what this one has besides.
        """
        program = message["argv"][2:3]
        forkable = message.get("warm") and program and (program[0] == "-m" or program[0].endswith(".py"))
        template = self._template_for(message, environment) if forkable else None
        if template is None:
            job.refused()
        else:
            template.add(job, {**environment, **own})

    # the template

    def _template_for(self, message: Message, environment: dict[str, str]) -> Template | None:
        """The template that can fork what a message asks for, which may have to be started; None where there can be none."""
        python = message["argv"][0]
        if self.template is not None and self.template.serves(python, environment):
            return self.template
        if any(template.serves(python, environment) for template in self.unfit):
            return None
        self._end_template()
        source = os.path.join(os.path.dirname(message["library"]), "template.py")
        try:
            self.template = Template([python, "-u", source], environment, "template.log")
        except OSError:
            return None
        self.selector.register(self.template.wire, selectors.EVENT_READ, self._hear_template)
        return self.template

    def _hear_template(self) -> None:
        template = self.template
        if template is None:
            return
        try:
            data = template.wire.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_template(template)
            return
        message = json.loads(data)
        if "ready" in message:
            template.ready = True
        elif "unfit" in message:
            self.send(type="cold", reason=message["unfit"])
            self._lose_template(template)
            return
        elif "ended" in message:
            self._process_ended(message["ended"], message["status"])
        elif template.with_it is not None:
            job, template.with_it = template.with_it, None
            if "forked" in message:
                job.started(message["forked"], message["start"])
            else:
                job.refused()
        template.go_on()
        self._note_spawned()

    def _lose_template(self, template: Template) -> None:
        """It died, or can't fork: its ranks go on, below this process now, and what it had still to do is done without it."""
        if not template.ready or template.with_it is not None:
            self.unfit.append(template)
        unfinished = ([template.with_it] if template.with_it else []) + template.jobs
        self._end_template()
        if template.with_it:
            self._end_unknown()  # it may have forked what it could not report
        for job in unfinished:
            job.refused()
        self._note_spawned()

    def _drop_jobs(self) -> None:
        """Forgets what was not handed to the template yet."""
        if self.template is not None:
            dropped, self.template.jobs = self.template.jobs, []
            for job in dropped:
                job.dropped()
        self._end_unplaced(-signal.SIGKILL, "stopped before it had started")

    def _end_template(self) -> None:
        template, self.template = self.template, None
        if template is not None:
            self.selector.unregister(template.wire)
            template.wire.close()
            kill_quietly(template.pid, signal.SIGKILL)

    def _library_path(self, message: Message) -> list[str]:
        """Where ranks look for libraries first. One that they ask for by another name than it has here gets a link."""
        folder, links = message.get("library_path", ["", {}])
        for name, target in links.items():
            folder = os.path.abspath("libraries")
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(target, os.path.join(folder, name))
        return [folder] if folder else []

    def _environment(self, message: Message) -> dict[str, str]:
        """What the node has, then what the profile wants; its defaults hold only where the node says nothing."""
        # An MPI job around this one must not be taken for ours.
        own = {name: value for name, value in os.environ.items() if not name.startswith(MPI_OWN)}
        env = {**message["env_defaults"], **own, **message["env"], MARK: self.mark}
        first = [("PYTHONPATH", message["library"])]
        first += [("LD_LIBRARY_PATH", path) for path in self._library_path(message)]
        for name, folder in first:
            env[name] = folder + (os.pathsep + env[name] if env.get(name) else "")
        return env

    def _on_spawn(self, message: Message) -> None:
        if message["attempt"] <= self.cleared_attempt:
            return
        if message["attempt"] > self.attempt:
            for rank in self.ranks.values():
                rank.close()
            self.attempt, self.ranks, self.starting, self.ladder = message["attempt"], {}, {}, None
            self._drop_proxies()
            with contextlib.suppress(FileNotFoundError):
                os.unlink("exits")
        self.spawning = self.dirty = True
        self.save()
        environment = self._environment(message)
        for wanted in message["ranks"]:
            number, generation = wanted["rank"], wanted.get("generation", 0)
            old = self.ranks.get(number)
            if (old is None or old.generation < generation) and self.starting.get(number, -1) < generation:
                self.starting[number] = generation
                self._spawn(wanted, message, environment)
        if self.unplaced and message["mpirun"]["argv"]:
            self._start_mpirun(message["mpirun"], environment)
        self._note_spawned()

    def _note_spawned(self) -> None:
        """Once no rank is under way any more, a successor need not look for unknown ones."""
        if (
            self.spawning
            and not self.unplaced
            and (self.template is None or not (self.template.jobs or self.template.with_it))
        ):
            self.spawning, self.dirty = False, True

    def _spawn(self, wanted: Message, message: Message, environment: dict[str, str]) -> None:
        attempt, number, files = message["attempt"], wanted["rank"], [wanted["out"], wanted["err"], wanted["metrics"]]
        generation = wanted.get("generation", 0)
        argv, cwd = message["argv"], message["cwd"]
        env, descriptors = dict(wanted["env"]), []  # type: tuple[dict[str, str], list[int]]

        def started(pid: int, start: int, *, adopted: bool = True) -> None:
            self.starting.pop(number, None)
            close_all(descriptors)
            old = self.ranks.get(number)
            rank = self.ranks[number] = Rank(number, files)
            if old is not None:
                old.close()
                rank.sent = old.sent
            rank.pid, rank.start, rank.adopted, rank.generation = pid, start, adopted, generation
            self.dirty = True
            self.send(type="spawned", attempt=attempt, rank=number, pid=pid, generation=generation)
            if self.stopped_attempt == attempt:
                kill_group(pid, signal.SIGKILL)

        def start_cold() -> None:
            try:
                with open_log(files[0]) as out, open_log(files[1]) as err:
                    if descriptors:
                        env["PMI_FD"] = str(descriptors[0])
                    options = {"cwd": cwd, "stdout": out, "stderr": err, "pass_fds": descriptors}
                    pid = start_process(argv, env={**environment, **env}, **options)
            except OSError as error:
                failed(error)
            else:
                started(pid, start_time(pid), adopted=False)

        def end(status: int, reason: str) -> None:
            self.starting.pop(number, None)
            close_all(descriptors)
            self.send(type="ended", attempt=attempt, rank=number, status=status, reason=reason, generation=generation)

        def failed(error: OSError) -> None:
            status = 127 if error.errno == errno.ENOENT else 126
            where = f" {error.filename!r}" if error.filename else ""
            end(status, f"can't start: {error.strerror}{where}")

        try:
            os.makedirs(os.path.dirname(wanted["out"]), mode=0o700, exist_ok=True)
            os.stat(cwd)
        except OSError as error:
            failed(error)
            return
        request = {"argv": argv, "cwd": cwd, "stacks": wanted.get("stacks", ""), "library": message["library"]}

        def dropped() -> None:
            end(-signal.SIGKILL, "stopped before it had started")

        def open_files() -> list[Any]:
            return [*(open_log(path) for path in files[:2]), *(os.fdopen(os.dup(one), "rb", 0) for one in descriptors)]

        def start() -> None:
            self._start(Job(request, open_files, started, start_cold, dropped), message, environment, env)

        def take_place(given: dict[str, str], theirs: list[int]) -> None:
            env.update({name: value for name, value in given.items() if name.startswith(MPI_GIVES)})
            defaults = message["mpirun"]["defaults"].items()
            env.update({name: value for name, value in defaults if name not in environment})
            if len(message["ranks"]) > len(os.sched_getaffinity(0)):
                env[YIELD] = environment.get(YIELD, "1")
            env.update(wanted["env"])
            descriptors.extend(theirs)
            if theirs:
                env["PMI_FD"] = "3"  # where a template puts it
            start()

        if message.get("mpirun"):
            self.unplaced[number] = take_place, end
        else:
            start()

    # ranks that mpirun has to know

    def _start_mpirun(self, wanted: Message, environment: dict[str, str]) -> None:
        """Starts mpirun, unless it runs for this attempt already: its processes come to this agent, and ask for their ranks."""
        if self.mpirun is not None and self.mpirun["attempt"] == self.attempt:
            return
        try:
            if "launcher" in wanted:
                with open("launcher", "w") as file:  # in the folder that mpirun starts in
                    file.write(wanted["launcher"])
            os.makedirs(os.path.dirname(wanted["log"]), mode=0o700, exist_ok=True)
            with open_log(wanted["log"]) as log:
                own = {name: value for name, value in environment.items() if not name.startswith(BATCH_OWN)}
                if self.relays:  # on a node's own disk: what MPI leaves behind goes away with this folder
                    own["TMPDIR"] = os.path.abspath("temporary")
                    os.makedirs(own["TMPDIR"], mode=0o700, exist_ok=True)
                pid = start_process(wanted["argv"], env={**own, **wanted["env"]}, stdout=log, stderr=log)
        except OSError as error:
            reason = f"can't start {wanted['argv'][0]}: {error.strerror}"
            self._end_unplaced(127, reason)
            self.send(type="daemon_ended", attempt=self.attempt, status=1, reason=reason)
            return
        self.mpirun = {"attempt": self.attempt, "pid": pid, "start": start_time(pid)}
        self.mpirun.update(log=wanted["log"], name=wanted["name"])
        self.dirty = True

    def _on_daemon(self, message: Message) -> None:
        """Starts mpirun's daemon on this node, which then starts mpirun's processes here; once in an attempt."""
        attempt, wanted = message["attempt"], message["mpirun"]
        if attempt != self.attempt or attempt <= max(self.cleared_attempt, self.stopped_attempt):
            return
        if self.daemon_done == attempt:
            self.send(type="daemon_ended", attempt=attempt, status=0, reason="")
            return
        # mpirun writes the command for the shell that an ssh would have started.
        login_shell = pwd.getpwuid(os.geteuid()).pw_shell
        wanted["argv"] = [login_shell if login_shell.endswith("csh") else "sh", "-c", wanted["command"]]
        self._start_mpirun(wanted, self._environment(message))

    def _on_mpirun_gone(self, message: Message) -> None:
        """Without mpirun no rank of this node will get its place."""
        if message["attempt"] == self.attempt:
            self._end_unplaced(1, message["reason"])

    def _take_launcher(self, stranger: Stranger, message: Message) -> None:
        """What mpirun has started in place of an `ssh`: the supervisor is asked to have the command run there."""
        host, wire = message["host"], stranger.wire
        if message["attempt"] != self.attempt or host in self.launchers:
            stranger.close()
            return
        request = {"type": "daemon", "attempt": message["attempt"], "host": host, "command": message["command"]}
        self.launchers[host] = wire, request
        self.selector.register(wire, selectors.EVENT_READ, lambda: self._let_launcher_go(host, b""))
        self.send(**request)

    def _on_daemon_ended(self, message: Message) -> None:
        if message["attempt"] == self.attempt:
            self._let_launcher_go(message["host"], b"1" if message["status"] else b"0")

    def _let_launcher_go(self, host: str, word: bytes) -> None:
        wire, _ = self.launchers.pop(host, (None, None))
        if wire is not None:
            self._part(wire, word)

    def _part(self, wire: socket.socket, word: bytes) -> None:
        """Says a last word to a process of mpirun, if there is one to be said."""
        self.selector.unregister(wire)
        with contextlib.suppress(OSError):
            wire.send(word)
        wire.close()

    def _take_proxy(self, stranger: Stranger, message: Message) -> None:
        """A process of mpirun offers its place, or is still there after this agent has taken another's place."""
        number, rank = message["rank"], self.ranks.get(message["rank"])
        wanted = self.unplaced.pop(number, None) if message["attempt"] == self.attempt else None
        if wanted is None and (message["attempt"] != self.attempt or rank is None or rank.status is not None):
            stranger.close()  # it asks again
            return
        wire, descriptors = stranger.wire, stranger.descriptors
        old = self.proxies.get(number)
        if old is not None:
            self.selector.unregister(old)
            old.close()
        self.proxies[number] = wire
        self.selector.register(wire, selectors.EVENT_READ, lambda: self._lose_proxy(number, wire))
        if wanted is None:
            close_all(descriptors)
        else:
            wanted[0](message["env"], descriptors)
            self._note_spawned()

    def _lose_proxy(self, number: int, wire: socket.socket) -> None:
        """Its end is mpirun's word that the rank is to end: MPI_Abort was called, or mpirun was told to stop."""
        if self.proxies.get(number) is wire:  # else it was let go by what came in the same moment
            self.selector.unregister(wire)
            wire.close()
            del self.proxies[number]
            self.doomed[number] = time.monotonic() + ABORT_GRACE

    def _drop_proxies(self, word: bytes = b"") -> None:
        for wire in self.proxies.values():
            self._part(wire, word)
        self.proxies = {}

    def _mpirun_lives(self) -> bool:
        if self.mpirun is None:
            return False
        mark = process_mark(self.mpirun["pid"])
        return mark is not None and mark[0] == self.mpirun["start"] and mark[1] not in "ZX"

    def _end_mpirun(self) -> None:
        """Lets mpirun put its temporary files away: killed by force, it would leave them."""
        self._drop_proxies(b"0")
        for host in list(self.launchers):
            self._let_launcher_go(host, b"0")
        self.doomed.clear()
        deadline = time.monotonic() + MPIRUN_GRACE
        asked = False
        while self.mpirun is not None and self._mpirun_lives() and time.monotonic() < deadline:
            if not asked and time.monotonic() > deadline - MPIRUN_GRACE / 2:
                asked = True
                kill_group(self.mpirun["pid"], signal.SIGTERM)
            time.sleep(0.01)

    def _watch_mpirun(self) -> None:
        for number, deadline in list(self.doomed.items()):
            rank = self.ranks.get(number)
            if number not in self.starting and (rank is None or rank.status is not None):
                del self.doomed[number]
            elif rank is not None and time.monotonic() > deadline:
                self._signal(rank, signal.SIGKILL)
        if self.mpirun is not None and not self._mpirun_lives():
            self._mpirun_ended("ended")

    def _mpirun_ended(self, how: str) -> None:
        """Ranks that it has not started never will be, and those that it knew are ended with it."""
        mpirun, self.mpirun, self.dirty = self.mpirun, None, True
        if mpirun is not None and mpirun["attempt"] == self.attempt:
            self.daemon_done = self.attempt
            status, reason = (1 if self.unplaced else 0), f"{mpirun['name']} {how}: {first_words(mpirun['log'])}"
            self._end_unplaced(1, reason)
            self.send(type="daemon_ended", attempt=self.attempt, status=status, reason=reason)
            for number in {*self.ranks, *self.starting}:
                self.doomed.setdefault(number, time.monotonic() + ABORT_GRACE)

    def _end_unplaced(self, status: int, reason: str) -> None:
        unplaced, self.unplaced = self.unplaced, {}
        for _, end in unplaced.values():
            end(status, reason)
        self._note_spawned()

    def _on_signal(self, message: Message) -> None:
        rank = self.ranks.get(message["rank"])
        if message["attempt"] == self.attempt and rank is not None and rank.status is None:
            self._signal(rank, message["signal"])

    def _signal(self, rank: Rank, number: int) -> None:
        """Signals a whole group, having made sure that the number is still the rank's own."""
        mark = process_mark(rank.pid)
        if mark is not None and mark[0] == rank.start:
            kill_group(rank.pid, number)

    def _on_tell(self, message: Message) -> None:
        """Passes news for the ranks on to the store's process, which puts them where each rank looks."""
        if self.store is None or self.store["attempt"] != message["attempt"] or not self.store.get("news"):
            return
        # Both ends: what is written before the store's process listens waits for it. It is kept open for as long.
        if self.news_pipe is None or self.news_pipe[0] != self.store["news"]:
            self._close_news()
            self.news_pipe = self.store["news"], os.open(self.store["news"], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self.news_pipe[1], json.dumps([message["number"], message["news"]]).encode() + b"\n")

    def _close_news(self) -> None:
        if self.news_pipe is not None:
            os.close(self.news_pipe[1])
            self.news_pipe = None

    def _on_stacks(self, message: Message) -> None:
        """Asks every rank for its stacks by a signal. What its process groups are at is asked for after that: faulthandler crashes
        where the thread that tells of them runs meanwhile (seen with Python 3.11)."""
        asked: list[Any] = []
        for rank in self.ranks.values():
            if rank.status is not None:
                continue
            path = rank.path("stacks")
            size = file_size(path)
            if catches(rank.pid, STACKS_SIGNAL):
                kill_quietly(rank.pid, STACKS_SIGNAL)
            else:
                path = ""
            asked.append((rank, path, size))
        self.stacks = None
        self.stacks_asked = time.monotonic() + 3, asked

    def _ask_collectives(self, answered: list[Any]) -> None:
        """Asks ranks through their pipes. One that is stopped gets the signal when it goes on, so it is left alone."""
        asked: list[Any] = []
        for rank in answered:
            path = rank.path("collectives")
            size = file_size(path)
            if wake(rank.path("asked")):
                asked.append((rank, path, size))
        self.stacks_asked = time.monotonic() + 1.5, asked

    def _answer_stacks(self) -> None:
        """A stopped rank writes nothing; whoever waits for the others must not wait for it longer than this."""
        if self.stacks_asked is None:
            return
        deadline, asked = self.stacks_asked
        sizes = [file_size(path) for _, path, _ in asked]
        grown = all(size > before or not path for size, (_, path, before) in zip(sizes, asked))  # noqa: B905 - Python 3.8
        if self.stacks_sizes != sizes or (not grown and time.monotonic() < deadline):
            self.stacks_sizes = sizes
            return
        most = min(MAX_ANSWER, MAX_ANSWERS // max(1, len(asked)))
        texts = [read_from(path, before, most) if path else "" for _, path, before in asked]
        if self.stacks is None:
            self.stacks = []
            answered = []
            for (rank, path, _), text in zip(asked, texts):  # noqa: B905
                reason = "it does not answer; it may be stopped" if path else "its Python was not prepared for it"
                self.stacks.append([rank.number, text, "" if text else reason])
                if text or not path:
                    answered.append(rank)
            self._ask_collectives(answered)
        else:
            collectives = [[rank.number, text] for (rank, _, _), text in zip(asked, texts) if text]  # noqa: B905
            self.stacks_asked = None
            self.send(type="stacks", ranks=self.stacks, collectives=collectives)

    def _on_stop(self, message: Message) -> None:
        if message["attempt"] == self.attempt:
            self._start_ladder(message["at_once"])

    def _on_clear(self, message: Message) -> None:
        self._clear(message["attempt"], at_once=message.get("at_once", False))

    def _on_close(self, message: Message) -> None:
        if message.get("keep"):
            write_atomically(KEEP, b"")
        self._leave()

    def _clear(self, attempt: int, *, at_once: bool = False) -> None:
        """Ends whatever an attempt left behind: ranks, children that left their rank's group, the store.

        Args:
            attempt: its number.
            at_once: nobody waits for what ranks wrote and was not relayed yet.
        """
        self.cleared_attempt = max(self.cleared_attempt, attempt)
        self.ladder = None
        self._drop_jobs()
        if self.template is not None and self.template.with_it is not None:  # whatever it is about to fork ends with it
            job = self.template.with_it
            self._end_template()
            job.dropped()
        spare = {os.getpid()} | ({self.template.pid} if self.template else set())
        self._end_mpirun()
        self._end_gpu_watch()
        left = sweep(self._root(), spare, self.marks, 5.0)
        self.store = self.mpirun = None
        self.dirty = True
        for rank in self.ranks.values():
            if rank.status is None and rank.pid not in left:
                rank.status = -signal.SIGKILL
        sizes = [[rank.number, *map(size_of, rank.watched)] for rank in self.ranks.values() if attempt == self.attempt]
        tell = self.send if at_once else self.send_when_relayed
        tell(type="cleared", attempt=attempt, abandoned=left, sizes=sizes, at_once=at_once)

    def _end_store(self) -> None:
        if self.store:
            kill_group(self.store["pid"], signal.SIGKILL)
            self.store = None
            self.dirty = True
        self.store_asked = -1

    # what ranks do

    def _reap(self) -> None:
        while True:
            pid = next_zombie()
            if pid is None:
                return
            if any(rank.pid == pid for rank in self.ranks.values()) or (self.store and self.store["pid"] == pid):
                kill_group(pid, signal.SIGKILL)
            self._process_ended(pid, reap(pid))

    def _process_ended(self, pid: int, status: int) -> None:
        """A process was reaped, here or by the template: a rank's, the store's, or one that nobody waits for."""
        rank = next((rank for rank in self.ranks.values() if rank.pid == pid and rank.status is None), None)
        if rank is not None:
            self._ended(rank, status)
        elif self.mpirun is not None and self.mpirun["pid"] == pid:
            self._mpirun_ended(f"was ended by signal {-status}" if status < 0 else "ended")
        elif pid in self.probes:
            self._probe_ended(*self.probes.pop(pid))
        elif self.store is not None and self.store["pid"] == pid:
            self.send(type="store_lost", attempt=self.store["attempt"], reason=f"its process ended with {status}")
            self.store, self.dirty = None, True

    def _ended(self, rank: Rank, status: int) -> None:
        rank.status, rank.ended_at, self.dirty = status, time.time(), True
        if self.relays:
            self._relay(rank)
        else:
            self._report_growth()
        said = self._last_words(rank) if self.relays else {}
        self.send(
            type="ended",
            attempt=self.attempt,
            rank=rank.number,
            status=status,
            reason="",
            generation=rank.generation,
            **said,
        )

    def _watch_adopted(self) -> None:
        """Ranks that are no children of this process: the template or the warden reaps them and notes how they ended."""
        for rank in self.ranks.values():
            if not rank.adopted or rank.status is not None:
                continue
            mark = process_mark(rank.pid)
            if mark is not None and mark[0] == rank.start and mark[1] not in "ZX":
                continue
            status = self._noted_status(rank.pid, rank.start)
            if status is not None:
                self._ended(rank, status)
            elif rank.missing_since is None:
                rank.missing_since = time.monotonic()
            elif time.monotonic() - rank.missing_since > 2:
                self._lose(rank, "it ended while no agent was there to see how")

    def _lose(self, rank: Rank, reason: str, *, alive: bool = False) -> None:
        rank.status, rank.reason, rank.ended_at, self.dirty = -signal.SIGKILL, reason, time.time(), True
        self.send(
            type="lost",
            attempt=self.attempt,
            rank=rank.number,
            reason=reason,
            alive=alive,
            generation=rank.generation,
        )

    def _relay(self, last_words_of: Rank | None = None) -> None:
        """Sends what ranks have written: numbers first, for they are few; then all in turn, whoever floods.

        Args:
            last_words_of: a rank that has just ended. What it wrote goes first.
        """
        limit = RELAY_AHEAD * (2 if last_words_of else 1)
        ranks = [last_words_of] if last_words_of else list(self.ranks.values())
        self.turn += 1
        turn = self.turn % max(1, len(ranks))
        ranks = ranks[turn:] + ranks[:turn]
        self.behind = moved = True
        while moved and self.under_way < limit:
            moved = False
            for stream in (2, 1, 0) if self.turn % 2 else (2, 0, 1):
                for rank in ranks:
                    if stream < len(rank.watched) and self.under_way < limit:
                        moved = self._relay_chunk(rank, stream) or moved
        if not last_words_of and not moved:
            self.behind = False
            later, self.when_relayed = self.when_relayed, []
            for message in later:
                self.send(**message)

    def _last_words(self, rank: Rank) -> Message:
        """What explains the end of a rank, for a supervisor that may not have all of it yet: how a failed one complained, and its last numbers."""
        if not rank.status:
            return {}
        return {
            name: last_bytes(rank.watched[stream], size).decode("utf-8", "replace")
            for name, stream, size in (("errors", 1, LAST_ERRORS), ("numbers", 2, LAST_NUMBERS))
            if stream < len(rank.watched)
        }

    def _relay_chunk(self, rank: Rank, stream: int) -> bool:
        if self.link is None:
            return False
        data = os.pread(rank.watched[stream], CHUNK, rank.sent[stream])
        if data:
            place = {"attempt": self.attempt, "rank": rank.number, "stream": stream, "offset": rank.sent[stream]}
            self.outgoing += encode_frame({"type": "data", **place}, data)
            rank.sent[stream] += len(data)
            self.under_way += len(data)
        return bool(data)

    def send_when_relayed(self, **message: Any) -> None:
        """`send`, after all that ranks have written so far."""
        if not self.relays:
            self.send(**message)
            return
        self.when_relayed.append(message)
        self._relay()

    def _report_growth(self) -> None:
        if self.relays:
            self._relay()
            return
        grown = []
        for rank in self.ranks.values():
            sizes = [os.fstat(descriptor).st_size for descriptor in rank.watched]
            if len(sizes) == len(rank.sizes) and sizes != rank.sizes:
                rank.sizes = sizes
                grown.append([rank.number, *sizes])
        if grown:
            self.send(type="grew", attempt=self.attempt, sizes=grown)

    # ending ranks

    def _start_ladder(self, at_once: bool) -> None:
        self.stopped_attempt = self.attempt
        self._drop_jobs()
        steps = [[getattr(signal, name), seconds] for name, seconds in self.terms["stop_ladder"]]
        if at_once:
            steps = [[signal.SIGKILL, 5.0]]
        elif self.ladder is not None:
            return
        self.ladder = {"steps": steps, "deadline": 0.0, "last": None}
        self._walk_ladder()

    def _walk_ladder(self) -> None:
        """One step of the stop ladder for every rank that is still there; a stopped process must run to die of a signal."""
        if self.ladder is None:
            return
        alive = [rank for rank in self.ranks.values() if rank.status is None]
        if not alive:
            self.ladder = None
            return
        if time.monotonic() < self.ladder["deadline"]:
            return
        if not self.ladder["steps"]:
            self.ladder = None
            for rank in alive:
                state = (process_mark(rank.pid) or (0, "?"))[1]
                self._lose(rank, f"process {rank.pid} could not be killed (state {state})", alive=True)
            return
        number, seconds = self.ladder["steps"].pop(0)
        self.ladder["deadline"] = time.monotonic() + seconds
        for rank in alive:
            self._signal(rank, number)
            self._signal(rank, signal.SIGCONT)

    def _on_probe(self, message: Message) -> None:
        """Has a probe answer questions about this node, beside everything else."""
        import tempfile  # a boot does not wait for it

        questions, answers = (tempfile.TemporaryFile(dir=".") for _ in range(2))  # noqa: SIM115  one outlives this
        with questions:
            questions.writelines(encode_frame(question) for question in message["questions"])
            questions.seek(0)
            environment = {**os.environ, MARK: self.mark}
            pid = start_process(message["argv"], env=environment, stdin=questions, stdout=answers)
        self.probes[pid] = message["number"], answers

    def _probe_ended(self, number: int, answers: Any) -> None:
        with answers:
            answers.seek(0)
            _, _, frames = answers.read(MAX_FRAME).partition(PROBE_SYNC)
            self.send(type="probed", number=number, answers=FrameBuffer().feed(frames))

    def _on_make_folder(self, message: Message) -> None:
        """Makes the folder that code will be brought to. Who may do that on a node is its own affair: it says why not."""
        reason = ""
        try:
            os.makedirs(message["path"], exist_ok=True)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        self.send(type="folder", number=message["number"], reason=reason)

    # how ranks use their GPUs

    def _on_watch_gpus(self, message: Message) -> None:
        """Starts what tells it, once in an attempt. It ends with its socket, at the latest where the attempt is cleared."""
        if message["attempt"] != self.attempt or self.attempt <= self.cleared_attempt or self.gpu_watch is not None:
            return
        self.gpu_watch = GpuWatch(message["argv"], self._environment(message), message["ranks"])
        self.selector.register(self.gpu_watch.wire, selectors.EVENT_READ, self._hear_gpus)

    def _hear_gpus(self) -> None:
        watch = self.gpu_watch
        if watch is None:
            return
        try:
            data = watch.wire.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            watch.heard = time.monotonic()
            self._tell_gpus(watch, json.loads(data))
        else:
            self._tell_gpus(watch, None)
            self._end_gpu_watch()

    def _notice_silent_gpus(self) -> None:
        """A driver that hangs says nothing: that, too, is told, since a supervisor has only the newest."""
        watch = self.gpu_watch
        if watch is not None and time.monotonic() - watch.heard > GPU_SILENCE:
            watch.heard = time.monotonic()
            self._tell_gpus(watch, None)

    def _tell_gpus(self, watch: GpuWatch, uses: list[list[Any]] | None) -> None:
        unknown = [None, None, None]
        ranks = [[rank, *(uses[index] if uses else unknown)] for index, rank in enumerate(watch.ranks)]
        self.send(type="gpus", attempt=self.attempt, ranks=ranks)

    def _end_gpu_watch(self) -> None:
        watch, self.gpu_watch = self.gpu_watch, None
        if watch is not None:
            self.selector.unregister(watch.wire)
            watch.wire.close()

    # the way to other nodes

    def _on_open_door(self, message: Message) -> None:
        """Lets other nodes try by which address they reach this one."""
        self._close_door()
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024)
        listener.setblocking(False)
        self.door = listener, message["word"]
        self.selector.register(listener, selectors.EVENT_READ, self._answer_door)
        own = os.environ.get("SSH_CONNECTION", "").split()
        addresses = [address for address, _ in interfaces() if not is_loopback(address)]
        addresses.sort(key=lambda address: (own[2:3] != [address], ":" in address))
        self.send(type="door", number=message["number"], port=listener.getsockname()[1], addresses=addresses)

    def _answer_door(self) -> None:
        if self.door is not None:
            with contextlib.suppress(OSError):
                visitor, _ = self.door[0].accept()
                with visitor:
                    visitor.send(self.door[1].encode())

    def _on_close_door(self, message: Message) -> None:
        self._close_door()

    def _close_door(self) -> None:
        if self.door is not None:
            self.selector.unregister(self.door[0])
            self.door[0].close()
            self.door = None

    def _on_knock(self, message: Message) -> None:
        """Tries to reach another node by each of its addresses: who answers must know the word, since the address may be anybody's."""
        names = dict(interfaces())
        reached = knock(message["addresses"], message["port"], message["word"].encode())
        self.send(
            type="knocked",
            number=message["number"],
            reached=[[address, names.get(own, "")] for address, own in reached],
        )

    def _on_name_interface(self, message: Message) -> None:
        self.send(type="interface", number=message["number"], name=dict(interfaces()).get(message["address"], ""))


# --- networks --------------------------------------------------------------------------------------------------------


def is_loopback(address: str) -> bool:
    """Whether an address means the machine that uses it, or one link only."""
    return address.startswith("127.") or address == "::1" or address.lower().startswith("fe80")


def interfaces() -> list[tuple[str, str]]:
    """(address, interface) of everything that is up on this node, IPv4 before IPv6, in the kernel's order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has no address
                found.append((socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, request)[20:24]), name))  # SIOCGIFADDR
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, name = line.split()
            found.append((socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), name))
    return found


def knock(addresses: list[str], port: int, word: bytes) -> list[tuple[str, str]]:
    """(address, own address) for each address at which somebody answers with the word."""
    waiting = selectors.DefaultSelector()
    reached = {}
    with contextlib.ExitStack() as stack:
        for address in addresses[:64]:
            wire = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
            wire.setblocking(False)
            with contextlib.suppress(OSError):
                if wire.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                    waiting.register(wire, selectors.EVENT_READ, address)
        deadline = time.monotonic() + KNOCK_TIME
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                waiting.unregister(key.fileobj)
                with contextlib.suppress(OSError):
                    own = key.fileobj.getsockname()[0]  # type: ignore[union-attr]
                    if key.fileobj.recv(len(word)) == word:  # type: ignore[union-attr]
                        reached[key.data] = own
                        deadline = min(deadline, time.monotonic() + KNOCK_GRACE)
    waiting.close()
    return [(address, reached[address]) for address in addresses if address in reached]


def is_same_file(wanted: list[str] | None) -> bool:
    """Whether the supervisor's file is seen from this node too: then both share that folder.

    Args:
        wanted: its path and the SHA-256 of its content, or None.
    """
    if not wanted:
        return False
    try:
        with open(wanted[0], "rb") as file:
            return hashlib.sha256(file.read(MAX_FRAME)).hexdigest() == wanted[1]
    except OSError:
        return False


# --- warden and bridge -----------------------------------------------------------------------------------------------


def detach(folder: str, keep: set[int]) -> None:
    """Leaves the session, the terminal and the descriptors of whoever booted this; the wire above all.

    From here on the folder is the working directory, and its files go by their bare names: it may be renamed.
    """
    os.setsid()
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    out = os.open("agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor that listed them
                os.close(int(name))


def run_warden(listener: socket.socket, mark: str) -> None:
    """Keeps an agent running until one ends on purpose; then ends everything that is left and goes."""
    become_subreaper()
    warden = os.getpid()
    deaths: list[float] = []
    agent = start_agent(listener, warden, mark, again=False)
    remove_forgotten(os.path.dirname(os.getcwd()))
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            break
        pid = found.si_pid if found else 0
        if pid != agent:
            note_exit(pid)
            continue
        if reap(pid) == 0:
            break
        deaths = [moment for moment in deaths if time.monotonic() - moment < 10] + [time.monotonic()]
        if len(deaths) > 5:
            break
        agent = start_agent(listener, warden, mark, again=True)
    sweep(warden, {warden}, [mark], 5.0)
    with contextlib.suppress(OSError), open("socket") as file:
        os.unlink(file.read())


def note_exit(pid: int) -> None:
    """Notes how a rank ended whose agent was gone, ends its group, and reaps it."""
    mark = process_mark(pid)
    if os.getsid(pid) == pid:
        kill_group(pid, signal.SIGKILL)
    status = reap(pid)
    with contextlib.suppress(OSError), open("exits", "a") as file:  # a full disk: only that status is lost
        file.write(f"{pid} {mark[0] if mark else 0} {status} {time.time()}\n")


def start_agent(listener: socket.socket, warden: int, mark: str, *, again: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = EXIT_FAILED
    try:
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        status = Agent(listener, warden, mark).run(again=again)
    except BaseException:  # noqa: BLE001 - this is the outermost frame of a process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def take_lock(folder: str) -> int | None:
    """The lock that warden and agent of one run on one node hold together; None where somebody has it."""
    lock = os.open(os.path.join(folder, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def connect(folder: str, mark: str) -> socket.socket:
    """A connection to this run's agent, which is started where there is none."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open(os.path.join(folder, "socket")) as file:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(file.read())
            return link
        lock = take_lock(folder)
        if lock is None:
            time.sleep(0.02)
            continue
        listener = listen(folder, mark)
        if os.fork() == 0:
            status = EXIT_FAILED
            try:
                detach(folder, {listener.fileno(), lock})
                run_warden(listener, mark)
                status = 0
            finally:
                os._exit(status)
        listener.close()
        os.close(lock)
    raise RuntimeError("the agent on this node does not answer")


def bridge(link: socket.socket, wire_in: int, wire_out: int, folder: str) -> bool:
    """Copies both ways until either end closes. If the agent ended, waits until it and its warden are gone.

    Returns:
        Whether they are.
    """
    selector = selectors.DefaultSelector()
    selector.register(wire_in, selectors.EVENT_READ)
    selector.register(link, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is link:
                data = link.recv(1 << 16)
                if not data:
                    return wait_until_gone(folder)
                while data:
                    data = data[os.write(wire_out, data) :]
            else:
                data = os.read(wire_in, 1 << 16)
                if not data:
                    return False
                try:
                    link.sendall(data)
                except OSError:  # it has left meanwhile, perhaps on purpose
                    return wait_until_gone(folder)


def wait_until_gone(folder: str) -> bool:
    """Returns whether agent and warden have let go of their lock.

    At once where the agent was killed: one that ends on purpose takes its socket away first.
    """
    with open(os.path.join(folder, "socket")) as file:
        path = file.read()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not os.path.exists(path):
        lock = take_lock(folder)
        if lock is not None:
            os.close(lock)
            return True
        time.sleep(0.005)
    return False


def boot() -> int:
    """What the booted process does: the first frame says which run this is; then it is the bridge."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.write(wire_out, SYNC)
    size = struct.unpack(">I", read_exactly(wire_in, 4))[0]
    hello = json.loads(read_exactly(wire_in, min(size, MAX_FRAME)))
    try:
        # A later login may have another temporary folder: from the second connection on the supervisor knows where the first was.
        folder = hello["folder"] or os.path.join(temporary_folder(), hello["mark"])
        link = connect(folder, hello["mark"])
    except (OSError, RuntimeError) as error:
        os.write(wire_out, encode_frame({"type": "refused", "reason": str(error)}))
        return EXIT_FAILED
    link.sendall(encode_frame(hello))
    has_closed = False
    with contextlib.suppress(OSError):
        has_closed = bridge(link, wire_in, wire_out, folder)
    if has_closed and hello.get("relay") and not os.path.exists(os.path.join(folder, KEEP)):
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if has_closed else EXIT_LINK_LOST


def read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            sys.exit(EXIT_CUT_OFF)
        data += more
    return data


if __name__ == "__main__":
    sys.exit(boot())
