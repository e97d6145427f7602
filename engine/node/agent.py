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

import base64
import contextlib
import ctypes
import errno
import fcntl
import io
import json
import os
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Dict  # noqa: UP035

Message = Dict[str, Any]  # noqa: UP006 - evaluated when it is imported, by Python 3.8 too

PROTOCOL = 1
SYNC = f"\0RANKDECK-AGENT {PROTOCOL}\n".encode()
"""Printed once before the first frame; whatever a login shell printed before it is skipped."""

MAX_FRAME = 16 * 1024 * 1024
EXIT_CUT_OFF, EXIT_FAILED = 98, 99
MARK = "RANKDECK_MARK"
"""Environment variable that every process of a run inherits from its rank; its value is nobody else's."""

TICK = 0.05
"""Seconds between two looks at the sizes of the ranks' files: a person sees no delay, and 64 ranks cost under 1 % of a core."""

BOOT = (
    "import os,sys\nn=int(sys.argv[1]);s=b''\nwhile len(s)<n:\n d=os.read(0,n-len(s))\n"
    " if not d:sys.exit(98)\n s+=d\nexec(compile(s,'rankdeck-agent','exec'))"
)
"""Reads exactly its own program from stdin, so that the next byte is the first frame."""


# --- frames: 4 bytes length, JSON ------------------------------------------------------------------------------------


def encode_frame(message: Message) -> bytes:
    """One message as bytes.

    Args:
        message: anything that JSON can say, at most MAX_FRAME bytes of it.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME}")
    return struct.pack(">I", len(body)) + body


class FrameBuffer:
    """Takes bytes in as they come and gives whole messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Adds bytes. Returns the messages that are complete now; raises ValueError for what can't be a frame."""
        self._data += data
        messages: list[Message] = []
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">I", self._data)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is larger than {MAX_FRAME}")
            if len(self._data) < 4 + size:
                break
            messages.append(json.loads(bytes(self._data[4 : 4 + size])))
            del self._data[: 4 + size]
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


def marked(mark: str) -> list[int]:
    """Every process that has this run's mark in its environment: a child that lost its parents is found by nothing else."""
    wanted, found = (MARK + "=" + mark).encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # ended, or somebody else's
            if wanted in file.read().split(b"\0"):
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
    popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    popen.returncode = 0
    return popen.pid


def sweep(root: int, spare: set[int], mark: str, seconds: float) -> list[int]:
    """Kills everything below `root` or with this run's mark, by force, until nothing is left or the time is over.

    Returns what is left.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = sorted({*descendants(root, spare), *marked(mark)} - spare)
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
    """The user's private folder for sockets on this node. Raises RuntimeError where it is somebody else's."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK | os.X_OK):
        folder = os.path.join(base, "rankdeck")
    else:
        folder = os.path.join(tempfile.gettempdir(), f"rankdeck-{os.geteuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RuntimeError(f"{folder} is not a folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)
    return folder


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


def write_atomically(path: str, data: bytes) -> None:
    """Replaces a file so that a reader sees the old or the new content, never a part."""
    partial = f"{path}.{os.getpid()}.partial"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


# --- the agent -------------------------------------------------------------------------------------------------------


class Rank:
    """One rank's process. `status` is None while it runs; `adopted`: an earlier agent started it."""

    def __init__(self, number: int, files: list[str]) -> None:
        self.number, self.files = number, files
        self.pid = self.start = 0
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

    def close(self) -> None:
        for descriptor in self.watched:
            os.close(descriptor)
        self.watched = []


class Agent:
    """Owns the ranks of one run on one node.

    Args:
        folder: where it keeps what it must remember; files of the ranks are given with each spawn.
        listener: its listening socket.
        warden: pid of its parent.
        mark: of the run.
    """

    def __init__(self, folder: str, listener: socket.socket, warden: int, mark: str) -> None:
        self.folder, self.listener, self.warden, self.mark = folder, listener, warden, mark
        self.selector = selectors.DefaultSelector()
        self.link: socket.socket | None = None
        self.incoming = FrameBuffer()
        self.outgoing = bytearray()
        self.attempt = -1
        self.cleared_attempt = -1
        self.ranks: dict[int, Rank] = {}
        self.store: Message | None = None
        self.terms: Message = {"lease": 600.0, "on_disconnect": "keep", "stop_ladder": [["SIGKILL", 5.0]]}
        self.ladder: Message | None = None
        self.alone_since = time.monotonic()
        self.next_look = 0.0
        self.leaving: float | None = None
        self.spawning = False
        self.dirty = False

    # what it remembers

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def save(self) -> None:
        """Writes down what a successor must know. The loop does so before it sends, so nobody hears of it earlier."""
        if not self.dirty:
            return
        ranks = [[r.number, r.pid, r.start, r.status, r.reason, r.files, r.ended_at] for r in self.ranks.values()]
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        data = {
            "boot": boot, "attempt": self.attempt, "cleared": self.cleared_attempt, "ranks": ranks, "terms": self.terms,
            "store": self.store, "spawning": self.spawning, "version": PROTOCOL,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk: tried again with the next round
            write_atomically(self._path("agent.json"), json.dumps(data).encode())
            self.dirty = False

    def recall(self) -> None:
        """Adopts what an earlier agent of this run left on this node."""
        try:
            with open(self._path("agent.json")) as file:
                data = json.load(file)
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot = file.read().strip()
        except (OSError, ValueError):
            return
        if data.get("version") != PROTOCOL:
            return
        self.attempt, self.cleared_attempt, self.terms = data["attempt"], data["cleared"], data["terms"]
        for number, pid, start, status, reason, files, ended_at in data["ranks"]:
            if status is None and data["boot"] != boot:
                continue
            rank = self.ranks[number] = Rank(number, files)
            rank.pid, rank.start, rank.status, rank.reason, rank.adopted = pid, start, status, reason, True
            rank.ended_at = ended_at
        store = data["store"]
        if store and data["boot"] == boot and (process_mark(store["pid"]) or (None,))[0] == store["start"]:
            self.store = store
        if data["spawning"]:
            self._end_unknown()
        self.dirty = True

    def _root(self) -> int:
        """Below whom the processes of this run are: the warden, unless it was killed and its number may be another's."""
        return self.warden if os.getppid() == self.warden else os.getpid()

    def _end_unknown(self) -> None:
        """An earlier agent died between starting ranks and writing them down: those are ended, and started anew."""
        known = {rank.pid for rank in self.ranks.values()} | {self.store["pid"] if self.store else 0}
        for pid in descendants(self._root(), {os.getpid()}):
            try:
                if os.getsid(pid) not in known:
                    kill_quietly(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _noted_status(self, pid: int, start: int) -> int | None:
        """How a rank ended while no agent was there, from the warden's notes."""
        try:
            with open(self._path("exits")) as file:
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
                self.listener = listen(self.folder, self.mark)
        self.recall()
        wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._register_listener()
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        self.save()
        next_tick = 0.0
        while self.leaving is None or (self.outgoing and self.link and time.monotonic() < self.leaving):
            for key, _ in self.selector.select(max(0.0, next_tick - time.monotonic())):
                key.data()
            self._reap()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + TICK
            self.save()
            self._flush()
        return 0

    def _register_listener(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _keep_listening(self) -> None:
        """Listens anew where the socket has gone, as it does when a user logs out who has no other session."""
        if time.monotonic() < self.next_look or self.leaving is not None:
            return
        self.next_look = time.monotonic() + 1
        with contextlib.suppress(OSError, RuntimeError):
            wanted = socket_path(self.mark)
            if wanted != self.listener.getsockname() or not os.path.exists(wanted):
                listener = listen(self.folder, self.mark)
                self.selector.unregister(self.listener)
                self.listener.close()
                self.listener = listener
                self._register_listener()

    def _tick(self) -> None:
        self._keep_listening()
        self._watch_adopted()
        self._walk_ladder()
        if self.link is not None:
            if not self.outgoing:  # sizes are absolute: a link that is stuck gets the newest when it moves again
                self._report_growth()
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
        self._hang_up()
        connection.setblocking(False)
        self.link = connection
        self.incoming, self.outgoing = FrameBuffer(), bytearray()
        self.selector.register(connection, selectors.EVENT_READ, self._receive)

    def _hang_up(self) -> None:
        if self.link is not None:
            self.selector.unregister(self.link)
            self.link.close()
            self.link = None
            self.outgoing.clear()
            self.alone_since = time.monotonic()

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
            {"attempt": self.attempt, "rank": r.number, "pid": r.pid, "status": r.status, "reason": r.reason}
            for r in sorted(
                self.ranks.values(), key=lambda rank: rank.ended_at
            )  # as they ended: the first is the cause
        ]
        store = [self.store["attempt"], self.store["port"]] if self.store else None
        library = os.path.exists(os.path.join(self._path("library"), message["library"]))
        python = "{}.{}.{}".format(*sys.version_info[:3])
        self.send(
            type="hello", pid=os.getpid(), warden=self.warden, python=python, ranks=ranks, store=store, library=library
        )
        for rank in self.ranks.values():
            rank.sizes = [0] * len(rank.sizes)
        self._report_growth()

    def _on_library(self, message: Message) -> None:
        """Unpacks the `rankdeck` package, whole or not at all."""
        target = os.path.join(self._path("library"), message["name"])
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
        if self.store and self.store["attempt"] == attempt:
            self.send(type="store", attempt=attempt, port=self.store["port"])
            return
        self._end_store()
        try:
            family = socket.AF_INET6 if ":" in message["host"] else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.bind((message["host"], 0))
                listener.listen(4096)
                port = listener.getsockname()[1]
                argv = [*message["argv"], str(listener.fileno()), message["host"], str(port)]
                os.makedirs(os.path.dirname(message["log"]), mode=0o700, exist_ok=True)
                with open(
                    os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb"
                ) as log:
                    environment = self._environment(message)
                    pid = start_process(argv, env=environment, stdout=log, stderr=log, pass_fds=[listener.fileno()])
        except OSError as error:
            self.send(type="store_lost", attempt=attempt, reason=str(error))
            return
        self.store = {"attempt": attempt, "port": port, "pid": pid, "start": start_time(pid)}
        self.dirty = True
        self.send(type="store", attempt=attempt, port=port)

    def _environment(self, message: Message) -> dict[str, str]:
        """What the node has, then what the profile wants; its defaults hold only where the node says nothing."""
        env = {**message["env_defaults"], **os.environ, **message["env"], MARK: self.mark}
        old = env.get("PYTHONPATH")
        env["PYTHONPATH"] = message["library"] + (os.pathsep + old if old else "")
        return env

    def _on_spawn(self, message: Message) -> None:
        if message["attempt"] <= self.cleared_attempt:
            return
        if message["attempt"] > self.attempt:
            for rank in self.ranks.values():
                rank.close()
            self.attempt, self.ranks, self.ladder = message["attempt"], {}, None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path("exits"))
        self.spawning = self.dirty = True
        self.save()
        environment = self._environment(message)
        for wanted in message["ranks"]:
            if wanted["rank"] not in self.ranks:
                self._spawn(wanted, message["argv"], message["cwd"], {**environment, **wanted["env"]})
        self.spawning, self.dirty = False, True

    def _spawn(self, wanted: Message, argv: list[str], cwd: str, environment: dict[str, str]) -> None:
        number, files = wanted["rank"], [wanted["out"], wanted["err"], wanted["metrics"]]
        try:
            os.makedirs(os.path.dirname(wanted["out"]), mode=0o700, exist_ok=True)
            rank = Rank(number, files)
            with open(files[0], "ab") as out, open(files[1], "ab") as err:
                rank.pid = start_process(argv, env=environment, cwd=cwd, stdout=out, stderr=err)
        except OSError as error:
            status = 127 if error.errno == errno.ENOENT else 126
            where = f" {error.filename!r}" if error.filename else ""
            reason = f"can't start: {error.strerror}{where}"
            self.send(type="ended", attempt=self.attempt, rank=number, status=status, reason=reason)
            return
        rank.start = start_time(rank.pid)
        self.ranks[number] = rank
        self.send(type="spawned", attempt=self.attempt, rank=number, pid=rank.pid)

    def _on_signal(self, message: Message) -> None:
        rank = self.ranks.get(message["rank"])
        if message["attempt"] == self.attempt and rank is not None and rank.status is None:
            self._signal(rank, message["signal"])

    def _signal(self, rank: Rank, number: int) -> None:
        """Signals a whole group, having made sure that the number is still the rank's own."""
        mark = process_mark(rank.pid)
        if mark is not None and mark[0] == rank.start:
            kill_group(rank.pid, number)

    def _on_stop(self, message: Message) -> None:
        if message["attempt"] == self.attempt:
            self._start_ladder(message["at_once"])

    def _on_clear(self, message: Message) -> None:
        self._clear(message["attempt"])

    def _on_close(self, message: Message) -> None:
        self._leave()

    def _clear(self, attempt: int) -> None:
        """Ends whatever an attempt left behind: ranks, children that left their rank's group, the store."""
        self.cleared_attempt = max(self.cleared_attempt, attempt)
        self.ladder = None
        left = sweep(self._root(), {os.getpid()}, self.mark, 5.0)
        self.store = None
        self.dirty = True
        for rank in self.ranks.values():
            if rank.status is None and rank.pid not in left:
                rank.status = -signal.SIGKILL
        self.send(type="cleared", attempt=attempt, abandoned=left)

    def _end_store(self) -> None:
        if self.store:
            kill_group(self.store["pid"], signal.SIGKILL)
            self.store = None
            self.dirty = True

    # what ranks do

    def _reap(self) -> None:
        while True:
            pid = next_zombie()
            if pid is None:
                return
            rank = next((rank for rank in self.ranks.values() if rank.pid == pid and rank.status is None), None)
            is_store = self.store is not None and self.store["pid"] == pid
            if rank is not None or is_store:
                kill_group(pid, signal.SIGKILL)
            status = reap(pid)
            if rank is not None:
                self._ended(rank, status)
            elif self.store is not None and is_store:
                self.send(type="store_lost", attempt=self.store["attempt"], reason=f"its process ended with {status}")
                self.store, self.dirty = None, True

    def _ended(self, rank: Rank, status: int) -> None:
        rank.status, rank.ended_at, self.dirty = status, time.time(), True
        self._report_growth()
        self.send(type="ended", attempt=self.attempt, rank=rank.number, status=status, reason="")

    def _watch_adopted(self) -> None:
        """Ranks that an earlier agent started are not children of this one: the warden reaps them and notes how they ended."""
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
        self.send(type="lost", attempt=self.attempt, rank=rank.number, reason=reason, alive=alive)

    def _report_growth(self) -> None:
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


# --- warden and bridge -----------------------------------------------------------------------------------------------


def detach(log: str, keep: set[int]) -> None:
    """Leaves the session, the terminal and the descriptors of whoever booted this; the wire above all."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor that listed them
                os.close(int(name))


def run_warden(folder: str, listener: socket.socket, mark: str) -> None:
    """Keeps an agent running until one ends on purpose; then ends everything that is left and goes."""
    become_subreaper()
    warden = os.getpid()
    deaths: list[float] = []
    agent = start_agent(folder, listener, warden, mark, again=False)
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            break
        pid = found.si_pid if found else 0
        if pid != agent:
            note_exit(folder, pid)
            continue
        if reap(pid) == 0:
            break
        deaths = [moment for moment in deaths if time.monotonic() - moment < 10] + [time.monotonic()]
        if len(deaths) > 5:
            break
        agent = start_agent(folder, listener, warden, mark, again=True)
    sweep(warden, {warden}, mark, 5.0)
    with contextlib.suppress(OSError), open(os.path.join(folder, "socket")) as file:
        os.unlink(file.read())


def note_exit(folder: str, pid: int) -> None:
    """Notes how a rank ended whose agent was gone, ends its group, and reaps it."""
    mark = process_mark(pid)
    if os.getsid(pid) == pid:
        kill_group(pid, signal.SIGKILL)
    status = reap(pid)
    path = os.path.join(folder, "exits")
    with contextlib.suppress(OSError), open(path, "a") as file:  # a full disk: that status is lost, the warden is not
        file.write(f"{pid} {mark[0] if mark else 0} {status} {time.time()}\n")


def start_agent(folder: str, listener: socket.socket, warden: int, mark: str, *, again: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = EXIT_FAILED
    try:
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        status = Agent(folder, listener, warden, mark).run(again=again)
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
                detach(os.path.join(folder, "agent.log"), {listener.fileno(), lock})
                run_warden(folder, listener, mark)
                status = 0
            finally:
                os._exit(status)
        listener.close()
        os.close(lock)
    raise RuntimeError("the agent on this node does not answer")


def bridge(link: socket.socket, wire_in: int, wire_out: int, folder: str) -> None:
    """Copies both ways until either end closes. If the agent ended, waits until it and its warden are gone."""
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
                    return None
                link.sendall(data)


def wait_until_gone(folder: str) -> None:
    """Returns when agent and warden have let go of their lock.

    At once where the agent was killed: one that ends on purpose takes its socket away first.
    """
    with open(os.path.join(folder, "socket")) as file:
        path = file.read()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not os.path.exists(path):
        lock = take_lock(folder)
        if lock is not None:
            os.close(lock)
            return
        time.sleep(0.005)


def boot() -> int:
    """What the booted process does: the first frame says which run this is; then it is the bridge."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.write(wire_out, SYNC)
    size = struct.unpack(">I", read_exactly(wire_in, 4))[0]
    hello = json.loads(read_exactly(wire_in, min(size, MAX_FRAME)))
    try:
        link = connect(hello["folder"], hello["mark"])
    except (OSError, RuntimeError) as error:
        os.write(wire_out, encode_frame({"type": "refused", "reason": str(error)}))
        return EXIT_FAILED
    link.sendall(encode_frame(hello))
    with contextlib.suppress(OSError):
        bridge(link, wire_in, wire_out, hello["folder"])
    return 0


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
