"""The probe: one standard-library file that looks at a node before anything is launched there.

It comes through stdin by the agent's boot command, answers questions, and is gone when its stdin ends. Both ways a frame is 4
bytes of length and JSON, as with the agent. One question, one answer:

    clock                                      what time it is here
    machine                                    what the node has, and which ranks of earlier runs are still on it
    job {workdir, script, module, …}           what a rank of this job would find
    torch {seconds, …}                         what an import of torch comes to, in a child that may hang or crash
    run {program, seconds, …}                  what a program says in the Python of a rank, in such a child too
    listen {word}                              opens a port and gives its addresses; whoever connects is told the word
    connect {addresses, port, word, seconds}   at which of these addresses a port of another node answers with the word

The probe itself is isolated (`-I`), so that no module of the user's breaks it. What only a rank sees (PYTHONPATH, the user's
site folder, the profile's environment) is asked of a child that is started as a rank would be. Nothing is changed on the node.
Must run on Python 3.8 and later.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import resource
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from importlib import machinery, metadata
from typing import Any, Dict, List  # noqa: UP035

Message = Dict[str, Any]  # noqa: UP006 - evaluated when it is imported, by Python 3.8 too
Paths = List[str]  # noqa: UP006

SYNC = b"\0RANKDECK-PROBE 1\n"
"""Printed once before the first answer; whatever a login shell printed before it is skipped."""

EXIT_CUT_OFF = 98
MAX_FRAME = 1 << 20
MARK = "RANKDECK_MARK"
"""Environment variable that every process of a run inherits from its rank."""

STANDBY = ".standby-"
"""Beginning of the marks of what an app keeps warm: it ends with the app."""

START_TIME = 8.0
"""Seconds for a bare Python to start: with a cold file server it needs some."""

SMI_TIME = 10.0
"""Seconds for `nvidia-smi`, which wakes the driver where nothing keeps it up."""

NO_LIMIT = 1 << 60
"""The kernel writes "no limit" of memory as a number near 2**63."""

PATH_SIGN = b"\0path\0"
PATH_PROGRAM = (
    "import sys\nsys.stdout.buffer.write('\\0path\\0'.encode()+'\\0'.join(sys.path).encode("
    "sys.getfilesystemencoding(),'surrogateescape'))"
)
"""Says where a rank would look for modules. It imports nothing, since the user's folders stand first."""

END_WITH_PROBE = """
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
"""
"""Ends a child with the probe, however that ends. It imports a module, so the path comes first."""

TORCH_PROGRAM = f"""
import sys
descriptor, sys.path[:], sys.argv[1:] = int(sys.argv[1]), sys.argv[2:], []
{END_WITH_PROBE}
import torch
facts = dict(version=str(torch.__version__), cuda=str(torch.version.cuda or ""))
try:
    facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    import torch.distributed as dist
    facts["distributed"] = dist.is_available()
    facts["backends"] = [
        name for name in ("gloo", "nccl", "mpi", "ucc")
        if dist.is_available() and getattr(dist, "is_" + name + "_available", lambda: False)()
    ]
    if "nccl" in facts["backends"]:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    facts["trouble"] = type(error).__name__ + ": " + str(error)[:1000]
import os
os.write(descriptor, repr(facts).encode("utf-8", "replace"))
os._exit(0)
"""
"""Imports torch as a rank would and says what it can do: `-c PROGRAM descriptor path…`. It leaves at once: tearing torch down takes time and proves nothing."""


RUN_PROGRAM = f"""
import sys
{END_WITH_PROBE}
exec(compile(sys.argv.pop(), "rankdeck", "exec"))
"""
"""Runs another program: `-c RUN_PROGRAM program`."""

LONGEST_ANSWER = 1 << 16
"""Bytes of what a child tells that are kept."""

LONGEST_WORDS = 1 << 12
"""Bytes that are kept of the end of what a program says: whatever stands before it was printed while Python started."""


# --- the machine -----------------------------------------------------------------------------------------------------


def machine(question: Message) -> Message:
    """What the node has."""
    files, locked = (resource.getrlimit(what)[0] for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK))
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": count_gpus(),
        "open_files": None if files == resource.RLIM_INFINITY else files,
        "locked_memory": None if locked == resource.RLIM_INFINITY else locked,
        "memory": memory_limit(),
        "has_infiniband": bool(entries("/sys/class/infiniband")),
        "mpirun": shutil.which("mpirun") or shutil.which("mpiexec") or "",
        "interfaces": interfaces(),
        "leftovers": leftovers(),
    }


def entries(folder: str) -> Paths:
    """Names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def count_gpus() -> int:
    """NVIDIA devices that the kernel shows."""
    return sum(bool(re.match(r"nvidia\d+\Z", name)) for name in entries("/dev"))


def memory_limit() -> int | None:
    """Bytes of memory that this process's control groups allow at most; None where they set no limit. The smallest on the way
    up counts, of version 2 and of version 1."""
    limits = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("/sys/fs/cgroup", "memory.max")
            )
            parts = path.strip("/").split("/") if path.strip("/") else []
            for depth in range(len(parts) + 1):
                with contextlib.suppress(OSError, ValueError), open(os.path.join(root, *parts[:depth], name)) as limit:
                    limits.append(int(limit.read()))  # "max" is no number
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def interfaces() -> list[tuple[str, str]]:
    """(interface, address) in the kernel's order, IPv4 first. One that has no address is listed with an empty one."""
    names = [name for _, name in socket.if_nameindex()]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in names:
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found.append((name, socket.inet_ntoa(answer[20:24])))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, name = line.split()
            found.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    known = {name for name, _ in found}
    return found + [(name, "") for name in names if name not in known]


def leftovers() -> list[Message]:
    """Runs of this user that have processes here. `owned`: an agent looks after them, so they are no leftovers."""
    try:
        with open("/proc/net/unix") as file:
            sockets = file.read()
    except OSError:
        sockets = ""
    found: dict[str, Message] = {}
    for name in entries("/proc"):
        if not name.isdigit() or name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:  # ended, or somebody else's
            variables = dict(word.split(b"=", 1) for word in environ.read().split(b"\0") if b"=" in word)
            mark = os.fsdecode(variables.get(MARK.encode(), b""))
            # Whatever a rank has started itself, this probe perhaps, is part of that rank's run.
            if not mark or mark.startswith(STANDBY) or mark == os.environ.get(MARK):
                continue
            owned = f"agent-{mark}.sock" in sockets
            one = found.setdefault(mark, {"mark": mark, "run": "", "pids": [], "owned": owned})
            one["pids"].append(int(name))
            one["run"] = one["run"] or os.fsdecode(variables.get(b"RANKDECK_RUN", b""))
    for one in found.values():
        one["pids"].sort()
    return list(found.values())


# --- what a rank would find --------------------------------------------------------------------------------------------


def rank_environment(question: Message) -> dict[str, str]:
    """What the node has, then what the profile wants; its defaults hold only where the node says nothing."""
    return {**question["env_defaults"], **os.environ, **question["env"]}


def rank_folder(question: Message) -> str | None:
    """Where a rank would start; None where that can't be."""
    return question["workdir"] if os.access(question["workdir"], os.X_OK) else None


def rank_path(question: Message) -> Paths:
    """Where a rank would look for modules, the folder of its script first.

    Raises:
        RuntimeError: Python can't start as a rank would; with its last words.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PATH_PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=rank_environment(question),
            cwd=rank_folder(question),
            timeout=START_TIME,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Python does not start within {START_TIME:g} s") from None
    _, sign, said = done.stdout.rpartition(PATH_SIGN)
    if done.returncode or not sign:
        raise RuntimeError(last_line(done.stderr) or f"Python ended with status {done.returncode}")
    path = said.decode(sys.getfilesystemencoding(), "surrogateescape").split("\0")
    if path[:1] == [""]:  # not there with PYTHONSAFEPATH
        del path[0]
        first = (
            question["workdir"] if question["module"] else os.path.dirname(os.path.realpath(question["script"] or ""))
        )
        if question["module"] or question["script"]:
            path.insert(0, first)
    return path


def last_line(said: bytes) -> str:
    """The last line that has text: of a traceback, the error."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def job(question: Message) -> Message:
    """What a rank of this job would find. Only names and sizes are looked at; nothing of the user's is run."""
    answer: Message = {
        "workdir": folder_trouble(question["workdir"]),
        "workdir_writable": os.access(question["workdir"], os.W_OK | os.X_OK),
        "script": script(question["script"]) if question["script"] else None,
        "module": None,
        "torch": "",
        "torch_cuda": None,
        "has_torch": False,
        "mpi4py": "",
        "start": "",
        "spaces": [
            space("temporary folder", tempfile.gettempdir(), writes=True),
            space("working directory", question["workdir"]),
        ],
        "shared_memory": None,
    }
    with contextlib.suppress(OSError):
        memory = os.statvfs("/dev/shm")
        answer["shared_memory"] = memory.f_blocks * memory.f_frsize
    try:
        path = rank_path(question)
    except (OSError, RuntimeError) as error:
        answer["start"] = str(error)
        return answer
    answer["torch"], answer["mpi4py"] = version("torch", path), version("mpi4py", path)
    answer["torch_cuda"] = torch_cuda(path)
    answer["has_torch"] = bool(answer["torch"]) or is_there("torch", path)
    if question["module"]:
        answer["module"] = is_there(question["module"].partition(".")[0], path)
    return answer


def folder_trouble(folder: str) -> str:
    """Why a rank could not start in a folder; empty where it can."""
    try:
        os.listdir(folder)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.X_OK) else os.strerror(errno.EACCES)


def script(path: str) -> Message:
    """Size and SHA-256 of a file, or why it can't be read."""
    answer: Message = {"size": 0, "sha256": "", "trouble": ""}
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(1 << 20)
                if not data:
                    break
                digest.update(data)
                answer["size"] += len(data)
    except OSError as error:
        return {**answer, "trouble": error.strerror or str(error)}
    return {**answer, "sha256": digest.hexdigest()}


def space(what: str, folder: str, *, writes: bool = False) -> Message:
    """Free bytes and free files (None where the file system does not count them) of the file system that a folder is on.

    Args:
        what: the folder, in words.
        folder: its path.
        writes: tries to write a file, which a quota can refuse where there is room.
    """
    answer: Message = {"what": what, "path": folder, "bytes": None, "files": None, "trouble": ""}
    try:
        found = os.statvfs(folder)
        answer["bytes"] = found.f_bavail * found.f_frsize
        answer["files"] = found.f_favail if found.f_files else None
        if writes:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1 << 16))
                file.flush()
    except OSError as error:
        answer["trouble"] = error.strerror or str(error)
    return answer


def version(name: str, path: Paths) -> str:
    """Version of an installed distribution, by what its installer has written down; empty where there is none."""
    with contextlib.suppress(Exception):  # whatever a damaged installation may raise
        for found in metadata.distributions(name=name, path=path):
            return str(found.version)
    return ""


def torch_cuda(path: Paths) -> str | None:
    """The CUDA that an installed torch was built for, empty for a build without, by the file in which it says so; None where
    there is no such file."""
    with contextlib.suppress(Exception):
        found = machinery.PathFinder.find_spec("torch", path)
        if found is not None and found.origin:
            with open(os.path.join(os.path.dirname(found.origin), "version.py")) as file:
                said = re.search(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([\d.]+)['\"])", file.read(1 << 16), re.MULTILINE)
            return None if said is None else said[1] or ""
    return None


def is_there(name: str, path: Paths) -> bool:
    """Whether there is a module of that name, which is not run."""
    with contextlib.suppress(Exception):
        return name in sys.builtin_module_names or machinery.PathFinder.find_spec(name, path) is not None
    return False


# --- torch ---------------------------------------------------------------------------------------------------------------


def torch(question: Message) -> Message:
    """What an import of torch comes to. A child does it: a crash and a hang are answers too."""
    answer: Message = {"facts": None, "trouble": "", "timed_out": False, "devices": devices()}
    try:
        path = rank_path(question)
    except (OSError, RuntimeError) as error:
        return {**answer, "trouble": str(error)}
    read, write = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-c", TORCH_PROGRAM, str(write), *path],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[write],
            env=rank_environment(question),
            cwd=rank_folder(question),
        )
        os.close(write)
        try:
            told = read_all(read, question["seconds"])
        finally:
            os.close(read)
            child.kill()
            status = child.wait()
        if told is None:
            return {**answer, "timed_out": True}
        if told:
            return {**answer, "facts": ast.literal_eval(told.decode("utf-8", "replace"))}
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
        words = last_line(said.read()) if status == 1 else ""
        return {**answer, "trouble": words or f"it ended with {status_name(status)}"}


def run(question: Message) -> Message:
    """What a program says in the Python and the environment of a rank, far from the folders of the user's script."""
    environment = rank_environment(question)
    if question["library_path"]:
        folders = [question["library_path"], environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    read, write = os.pipe()
    try:
        child = subprocess.Popen(
            [question["python"], "-c", RUN_PROGRAM, question["program"]],  # may be a script that makes libraries known
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
    except OSError:
        os.close(read)
        return {"text": "", "status": None}
    finally:
        os.close(write)
    told = None
    try:
        told = read_all(read, question["seconds"])
    finally:
        os.close(read)
        if told is None:
            child.kill()
        status = child.wait()
    if told is None:
        return {"text": "", "status": None}
    return {"text": told[-LONGEST_WORDS:].decode("utf-8", "replace"), "status": status}


def status_name(status: int) -> str:
    """How a child ended, in words."""
    with contextlib.suppress(ValueError):
        return f"status {status}" if status >= 0 else signal.Signals(-status).name
    return f"signal {-status}"


def read_all(descriptor: int, seconds: float) -> bytes | None:
    """What comes out of a pipe until its other end is closed; None where that takes longer. Ends this process where nobody waits
    for the answer any more."""
    deadline, data = time.monotonic() + seconds, b""
    while True:
        ready = wait([descriptor, 0], deadline)
        if 0 in ready:  # no question comes before this one is answered: the wire is closed
            sys.exit(EXIT_CUT_OFF)
        if not ready:
            return None
        more = os.read(descriptor, 1 << 16)
        if not more:
            return data
        data = (data + more)[-LONGEST_ANSWER:]


def devices() -> list[Message]:
    """Name and memory of every NVIDIA device, in bytes. `nvidia-smi` says it without a context on each device, as torch would make."""
    if not count_gpus():
        return []
    fields = "--query-gpu=name,memory.total,memory.free"
    try:
        done = subprocess.run(
            ["nvidia-smi", fields, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SMI_TIME,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.decode(errors="replace").splitlines():
        name, *sizes = (word.strip() for word in line.rsplit(",", 2))
        if len(sizes) == 2 and all(size.isdigit() for size in sizes):
            total, free = (int(size) << 20 for size in sizes)
            found.append({"name": name, "total": total, "free": free})
    return found


# --- from node to node -----------------------------------------------------------------------------------------------------


class Door:
    """The port that other nodes try to reach, and what whoever comes is told."""

    def __init__(self) -> None:
        self.listener: socket.socket | None = None
        self.word = b""

    def open(self, word: str) -> int:
        """Listens on every address of this node. Returns the port that the kernel gave."""
        try:
            self.listener = socket.socket(socket.AF_INET6)
            self.listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.listener.bind(("::", 0))
        except OSError:  # a kernel without IPv6
            self.listener = socket.socket(socket.AF_INET)
            self.listener.bind(("", 0))
        self.listener.listen(1024)
        self.word = word.encode()
        return int(self.listener.getsockname()[1])

    def answer(self) -> None:
        """Tells the word to one who has come."""
        assert self.listener is not None
        with contextlib.suppress(OSError):
            visitor, _ = self.listener.accept()
            with visitor:
                visitor.settimeout(1.0)
                visitor.sendall(self.word)


DOOR = Door()


def listen(question: Message) -> Message:
    """Lets other nodes try by which address they reach this one."""
    port = DOOR.open(question["word"])
    return {"port": port, "addresses": [address for _, address in interfaces() if address and not is_own(address)]}


def is_own(address: str) -> bool:
    """Whether an address means the machine that uses it, or one link only."""
    return address.startswith("127.") or address == "::1" or address.lower().startswith("fe80")


def connect(question: Message) -> Message:
    """Tries all addresses of a node at once. Who answers must know the word: on another network an address may be anybody's."""
    word = question["word"].encode()
    names = {address: name for name, address in interfaces()}
    reached: dict[str, str] = {}
    missed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        for address in question["addresses"]:
            try:
                wire = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
                wire.setblocking(False)
                started = wire.connect_ex((address, question["port"]))
            except OSError as error:
                started = error.errno or errno.EIO
            if started in (0, errno.EINPROGRESS):
                missed[address] = "no answer"
                waiting.register(wire, selectors.EVENT_READ, address)
            else:
                missed[address] = os.strerror(started)
        deadline = time.monotonic() + question["seconds"]
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                wire = key.fileobj  # type: ignore[assignment]
                waiting.unregister(wire)
                try:
                    own, heard = wire.getsockname()[0], wire.recv(len(word))
                except OSError as error:
                    missed[key.data] = error.strerror or str(error)
                    continue
                if heard == word:
                    reached[key.data] = names.get(own, own)
                    del missed[key.data]
                else:
                    missed[key.data] = "another machine answers there"
    order = [address for address in question["addresses"] if address in reached]
    return {"reached": [(address, reached[address]) for address in order], "missed": list(missed.items())}


# --- questions and answers -----------------------------------------------------------------------------------------------


def clock(question: Message) -> Message:
    """Seconds since the epoch."""
    return {"time": time.time()}


ANSWERS = {
    "clock": clock,
    "machine": machine,
    "job": job,
    "torch": torch,
    "run": run,
    "listen": listen,
    "connect": connect,
}


def wait(descriptors: list[int], deadline: float | None = None) -> list[int]:
    """Those of the descriptors that can be read from; none where the deadline passes. Visitors are answered meanwhile."""
    while True:
        door: list[Any] = [DOOR.listener] if DOOR.listener else []
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return []
        ready = select.select([*descriptors, *door], [], [], left)[0]
        if door and door[0] in ready:
            DOOR.answer()
        found = [one for one in descriptors if one in ready]
        if found:
            return found


def read_exactly(size: int) -> bytes:
    """So many bytes from the wire. Ends this process where the wire is closed."""
    data = b""
    while len(data) < size:
        wait([0])
        more = os.read(0, size - len(data))
        if not more:
            sys.exit(0 if not data else EXIT_CUT_OFF)
        data += more
    return data


def write(data: bytes) -> None:
    """All of it, into the wire."""
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    """Answers until stdin ends."""
    write(SYNC)
    while True:
        (size,) = struct.unpack(">I", read_exactly(4))
        question = json.loads(read_exactly(min(size, MAX_FRAME)))
        body = json.dumps(ANSWERS[question["ask"]](question)).encode()
        write(struct.pack(">I", len(body)) + body)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
